-- Tasks of which an old status may still reach the topic after a newer one: their newest is published once more when
-- that is over. Kept here, as the process that has the doubt may end before. Work state, no fold.
CREATE TABLE rollcall.status_doubts (
  task_id uuid NOT NULL,
  -- Something old has arrived for sure; or it may still do so.
  arrived boolean NOT NULL,
  -- From then on nothing old can arrive.
  due_at  timestamptz NOT NULL,
  PRIMARY KEY (task_id, arrived)
);
CREATE INDEX status_doubts_due ON rollcall.status_doubts (due_at);
