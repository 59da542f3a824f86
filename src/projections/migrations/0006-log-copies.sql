-- How far one log was copied into another, so that a copy that was stopped goes on where it was. A place is the position
-- and the id of an event, in the source and in the target; null is the start.
CREATE TABLE rollcall.log_copies (
  source_id  uuid NOT NULL,
  target_id  uuid NOT NULL,
  -- Everything up to here was stored.
  copied     json,
  -- Everything up to here was compared.
  verified   json,
  events     bigint NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- When the read model began to follow the target.
  moved_at   timestamptz,
  PRIMARY KEY (source_id, target_id)
);
