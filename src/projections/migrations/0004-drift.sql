-- Whether the read model is the fold, checked all the time: what was found to differ, and how far the look has come.

-- One row for each kind of difference of a task. A later look that finds the task right removes its rows.
CREATE TABLE rollcall.drift (
  task_id  uuid NOT NULL,
  kind     text COLLATE "C" NOT NULL,
  detail   text NOT NULL,
  found_at timestamptz NOT NULL DEFAULT now(),
  seen_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (task_id, kind)
);
-- What was found longest ago is looked at again first.
CREATE INDEX drift_by_look ON rollcall.drift (seen_at);

-- The place of the walk, so that a restart goes on where it was; null begins a new one. verified_at is the end of
-- the last walk over everything, which began at verified_from.
CREATE TABLE rollcall.verification (
  one           boolean PRIMARY KEY DEFAULT true CHECK (one),
  place         text,
  verified_from timestamptz,
  verified_at   timestamptz
);
INSERT INTO rollcall.verification DEFAULT VALUES;
