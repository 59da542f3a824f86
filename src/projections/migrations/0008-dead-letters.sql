-- Records that could not be handled, byte for byte, until a person redrives or discards them. Work state, no fold.
CREATE TABLE rollcall.dead_letters (
  -- Made from the record's place and bytes: the same record again is the same row. A topic that was made anew begins at
  -- offset 0 again, so the place alone would not do.
  letter_id        uuid PRIMARY KEY,
  -- Orders the list.
  number           bigint GENERATED ALWAYS AS IDENTITY,
  status           text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'redriven', 'discarded')),
  topic            text NOT NULL,
  partition        integer NOT NULL,
  record_offset    bigint NOT NULL,
  -- By the producer's clock or the broker's, in milliseconds: data, and no date that has to be one.
  record_timestamp bigint NOT NULL,
  key              bytea,
  value            bytea,
  -- JSON: [name, base64 of the value] in their order. As text, since a name may hold what jsonb refuses.
  headers          text NOT NULL,
  reason_code      text NOT NULL,
  reason_message   text NOT NULL,
  task_id          uuid,
  kept_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- How often it was redriven and remained.
  redrives         integer NOT NULL DEFAULT 0,
  redriven_at      timestamptz,
  -- When it ceased to wait, by whom and why.
  settled_at       timestamptz,
  settled_by       text,
  settled_because  text,
  CHECK ((status = 'waiting') = (settled_at IS NULL))
);
CREATE UNIQUE INDEX dead_letters_number ON rollcall.dead_letters (status, number);
CREATE INDEX dead_letters_task ON rollcall.dead_letters (task_id) WHERE task_id IS NOT NULL;
