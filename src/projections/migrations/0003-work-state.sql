-- What is handed out and who holds it: notices of cancelled tasks, gaps of the timers, offers that are counted.

-- Whether the worker of a task that was cancelled under its hands has heard of it; kept for seven days.
CREATE TABLE rollcall.cancel_notices (
  task_id      uuid PRIMARY KEY,
  attempt      integer NOT NULL,
  worker       text NOT NULL,
  cancelled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  told_at      timestamptz
);
CREATE INDEX cancel_notices_by_age ON rollcall.cancel_notices (cancelled_at);

-- The last gap: limits of running attempts that fell due in it wait until workers could be heard again.
ALTER TABLE rollcall.timer_ticks
  ADD COLUMN gap_began_at timestamptz NOT NULL DEFAULT '-infinity',
  ADD COLUMN gap_ended_at timestamptz NOT NULL DEFAULT '-infinity';

-- As before, and a later attempt begins to count its offers anew. Few tasks are made ready at a time and are looked
-- up in `offers` one by one; a hash join would read all offers.
CREATE OR REPLACE FUNCTION rollcall.make_ready(waiting json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $function$
BEGIN
  IF json_array_length(waiting) = 0 THEN RETURN; END IF;
  INSERT INTO rollcall.ready AS r (task_id, type, priority, pending_since, attempt)
  SELECT n.task_id, n.type, n.priority, n.pending_since, n.attempt
    FROM json_populate_recordset(NULL::rollcall.ready, waiting) n
   WHERE NOT EXISTS (SELECT FROM rollcall.offers o WHERE o.task_id = n.task_id AND o.attempt = n.attempt)
  ON CONFLICT (task_id) DO UPDATE SET
    pending_since = excluded.pending_since, attempt = excluded.attempt, times_offered = 0
  WHERE r.attempt < excluded.attempt;
END
$function$;

-- `make_ready` for those who do not project: they read the task before, and it may be finished by now. The row is
-- locked, so that a projector that takes the task out of `ready` does so before or after, and not in between.
CREATE FUNCTION rollcall.make_ready_again(waiting json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
DECLARE
  still uuid[];
BEGIN
  SELECT coalesce(array_agg(task_id), '{}') INTO still FROM (
    SELECT t.task_id
      FROM json_populate_recordset(NULL::rollcall.ready, waiting) n
      JOIN rollcall.tasks t ON t.task_id = n.task_id AND t.attempt = n.attempt AND t.status = 'PENDING'
     ORDER BY t.task_id FOR SHARE OF t) waits;
  PERFORM rollcall.make_ready(rollcall.of_tasks(waiting, still));
END
$function$;

-- Delayed tasks whose time has come are claimable, and what fires next takes their deadline's row over. Of several
-- processes that do this the later ones find the row taken over.
CREATE FUNCTION rollcall.pass_not_before(waiting json, next json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  PERFORM rollcall.make_ready_again(waiting);
  UPDATE rollcall.deadlines d SET due_at = n.due_at, timer = n.timer
    FROM json_populate_recordset(NULL::rollcall.deadlines, next) n
   WHERE d.task_id = n.task_id AND d.timer = 'not_before' AND d.attempt = n.attempt;
END
$function$;

-- Arms what fires next for open tasks that have lost their deadline. Rows carry the revision they were folded at:
-- where the read model is elsewhere by now, whoever moved it has armed the task or disarmed it.
CREATE FUNCTION rollcall.arm_again(lost json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  INSERT INTO rollcall.deadlines (task_id, due_at, timer, attempt)
  SELECT n.task_id, n.due_at, n.timer, n.attempt
    FROM json_to_recordset(lost)
         AS n (task_id uuid, due_at timestamptz, timer text, attempt integer, revision integer)
    JOIN rollcall.tasks t ON t.task_id = n.task_id AND t.revision = n.revision
   ORDER BY t.task_id FOR SHARE OF t
  ON CONFLICT DO NOTHING;
END
$function$;

DROP FUNCTION rollcall.project(json, json, json, json, uuid[], uuid[], uuid[]);
DROP FUNCTION rollcall.follow_tasks(json, json, json, uuid[], uuid[], uuid[]);

-- Follows tasks that moved: what is open is armed, what waits is ready, what runs has a lease, the rest is out of
-- all of them; who ran what was cancelled is to be told. An offer of an attempt that is over is overwritten by the
-- next one, or ends by itself.
CREATE FUNCTION rollcall.follow_tasks(
  armed json, waiting json, running json, notices json, finished uuid[], not_waiting uuid[], not_running uuid[]
) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  PERFORM rollcall.arm_deadlines(armed, finished);
  IF cardinality(not_waiting) > 0 THEN
    -- Offers first and again: a task that goes back to `ready` meanwhile is waited for by the first, one that is
    -- taken out of it by the second, and found where it went by the third.
    DELETE FROM rollcall.offers WHERE task_id = ANY (not_waiting);
    DELETE FROM rollcall.ready WHERE task_id = ANY (not_waiting);
    DELETE FROM rollcall.offers WHERE task_id = ANY (not_waiting);
  END IF;
  IF cardinality(not_running) > 0 THEN
    DELETE FROM rollcall.leases WHERE task_id = ANY (not_running);
  END IF;
  PERFORM rollcall.make_ready(waiting);
  PERFORM rollcall.grant_leases(running);
  IF json_array_length(notices) > 0 THEN
    -- What was pruned does not come back with a late note.
    INSERT INTO rollcall.cancel_notices (task_id, attempt, worker, cancelled_at)
    SELECT n.task_id, n.attempt, n.worker, n.cancelled_at
      FROM json_populate_recordset(NULL::rollcall.cancel_notices, notices) n
     WHERE n.cancelled_at > clock_timestamp() - interval '7 days'
    ON CONFLICT DO NOTHING;
  END IF;
END
$function$;

-- Brings the read model to these folds. A row that is there already, or further, stays as it is, and so does
-- everything that hangs on it. Answers the tasks whose rows moved.
CREATE FUNCTION rollcall.project(
  folds json, armed json, waiting json, running json, notices json,
  finished uuid[], not_waiting uuid[], not_running uuid[]
) RETURNS uuid[]
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
DECLARE
  moved uuid[];
BEGIN
  WITH written AS (
    INSERT INTO rollcall.tasks AS t
    SELECT * FROM json_populate_recordset(NULL::rollcall.tasks, folds)
    ON CONFLICT (task_id) DO UPDATE SET
      status = excluded.status, step = excluded.step, attempt = excluded.attempt, run = excluded.run,
      worker = excluded.worker, error_code = excluded.error_code, error_message = excluded.error_message,
      result_url = excluded.result_url, run_at = excluded.run_at, started_at = excluded.started_at,
      finished_at = excluded.finished_at, updated_at = excluded.updated_at, revision = excluded.revision,
      hash = excluded.hash
    WHERE t.revision < excluded.revision
    RETURNING t.task_id
  )
  SELECT coalesce(array_agg(task_id), '{}') INTO moved FROM written;

  IF cardinality(moved) = json_array_length(folds) THEN
    PERFORM rollcall.follow_tasks(armed, waiting, running, notices, finished, not_waiting, not_running);
  ELSE
    PERFORM rollcall.follow_tasks(
      rollcall.of_tasks(armed, moved), rollcall.of_tasks(waiting, moved), rollcall.of_tasks(running, moved),
      rollcall.of_tasks(notices, moved),
      ARRAY (SELECT unnest(finished) INTERSECT SELECT unnest(moved)),
      ARRAY (SELECT unnest(not_waiting) INTERSECT SELECT unnest(moved)),
      ARRAY (SELECT unnest(not_running) INTERSECT SELECT unnest(moved)));
  END IF;
  RETURN moved;
END
$function$;
