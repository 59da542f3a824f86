-- What one batch of events does to the read model and the work state, in one call: at low load a round trip costs
-- more than all of its statements. Rows come as JSON, whose columns are the tables'.
--
-- Plans are kept per connection from when the tables were small; the indexes are right at any size.

-- Arms what fires next for open tasks and disarms finished ones.
CREATE FUNCTION rollcall.arm_deadlines(armed json, finished uuid[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  IF json_array_length(armed) > 0 THEN
    INSERT INTO rollcall.deadlines AS d (task_id, due_at, timer, attempt)
    SELECT n.task_id, n.due_at, n.timer, n.attempt
      FROM json_populate_recordset(NULL::rollcall.deadlines, armed) n
    ON CONFLICT (task_id) DO UPDATE SET due_at = excluded.due_at, timer = excluded.timer, attempt = excluded.attempt
    WHERE (d.due_at, d.timer, d.attempt) IS DISTINCT FROM (excluded.due_at, excluded.timer, excluded.attempt);
  END IF;
  IF cardinality(finished) > 0 THEN
    DELETE FROM rollcall.deadlines WHERE task_id = ANY (finished);
  END IF;
END
$function$;

-- Makes waiting tasks claimable. A task that is out on an offer of this very attempt is not offered twice.
CREATE FUNCTION rollcall.make_ready(waiting json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  IF json_array_length(waiting) = 0 THEN RETURN; END IF;
  INSERT INTO rollcall.ready AS r (task_id, type, priority, pending_since, attempt)
  SELECT n.task_id, n.type, n.priority, n.pending_since, n.attempt
    FROM json_populate_recordset(NULL::rollcall.ready, waiting) n
   WHERE NOT EXISTS (SELECT FROM rollcall.offers o WHERE o.task_id = n.task_id AND o.attempt = n.attempt)
  ON CONFLICT (task_id) DO UPDATE SET pending_since = excluded.pending_since, attempt = excluded.attempt
  WHERE r.attempt < excluded.attempt;
END
$function$;

-- Grants running tasks a full lease where they have none for this attempt: from now, not from the START, since a
-- projector that was behind, or is rebuilt, must not take leases from workers that could not be heard.
CREATE FUNCTION rollcall.grant_leases(running json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  IF json_array_length(running) = 0 THEN RETURN; END IF;
  INSERT INTO rollcall.leases AS l (task_id, attempt, token_hash, claim_id, worker, lease_ms, held_until)
  SELECT n.task_id, n.attempt, n.token_hash, n.claim_id, n.worker, n.lease_ms,
         clock_timestamp() + n.lease_ms * interval '1 millisecond'
    FROM json_populate_recordset(NULL::rollcall.leases, running) n
  ON CONFLICT (task_id) DO UPDATE SET
    attempt = excluded.attempt, token_hash = excluded.token_hash, claim_id = excluded.claim_id,
    worker = excluded.worker, lease_ms = excluded.lease_ms, held_until = excluded.held_until,
    lost = false, last_heartbeat_at = NULL, progress = NULL
  WHERE l.attempt < excluded.attempt;
END
$function$;

-- Follows tasks that moved: what is open is armed, what waits is ready, what runs has a lease, the rest is out of
-- all of them. An offer of an attempt that is over is overwritten by the next one, or ends by itself.
CREATE FUNCTION rollcall.follow_tasks(
  armed json, waiting json, running json, finished uuid[], not_waiting uuid[], not_running uuid[]
) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  PERFORM rollcall.arm_deadlines(armed, finished);
  IF cardinality(not_waiting) > 0 THEN
    DELETE FROM rollcall.ready WHERE task_id = ANY (not_waiting);
    DELETE FROM rollcall.offers WHERE task_id = ANY (not_waiting);
  END IF;
  IF cardinality(not_running) > 0 THEN
    DELETE FROM rollcall.leases WHERE task_id = ANY (not_running);
  END IF;
  PERFORM rollcall.make_ready(waiting);
  PERFORM rollcall.grant_leases(running);
END
$function$;

-- The rows of a JSON array that belong to these tasks.
CREATE FUNCTION rollcall.of_tasks(rows json, task_ids uuid[]) RETURNS json
LANGUAGE sql IMMUTABLE AS $function$
  SELECT coalesce(json_agg(r), '[]') FROM json_array_elements(rows) r WHERE (r ->> 'task_id')::uuid = ANY (task_ids)
$function$;

-- Brings the read model to these folds. A row that is there already, or further, stays as it is, and so does
-- everything that hangs on it. Answers the tasks whose rows moved.
CREATE FUNCTION rollcall.project(
  folds json, armed json, waiting json, running json, finished uuid[], not_waiting uuid[], not_running uuid[]
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
    PERFORM rollcall.follow_tasks(armed, waiting, running, finished, not_waiting, not_running);
  ELSE
    PERFORM rollcall.follow_tasks(
      rollcall.of_tasks(armed, moved), rollcall.of_tasks(waiting, moved), rollcall.of_tasks(running, moved),
      ARRAY (SELECT unnest(finished) INTERSECT SELECT unnest(moved)),
      ARRAY (SELECT unnest(not_waiting) INTERSECT SELECT unnest(moved)),
      ARRAY (SELECT unnest(not_running) INTERSECT SELECT unnest(moved)));
  END IF;
  RETURN moved;
END
$function$;

-- Moves a projector's checkpoint by compare-and-set and renews its lease. Raises RC001 where another projector has
-- taken over, which undoes whatever was written with it. A lease that ended meanwhile is no reason to throw a batch
-- away as long as nobody has taken it.
CREATE FUNCTION rollcall.advance_projector(
  projector text, its_holder uuid, from_position text,
  to_log_id uuid, to_position text, to_event_id uuid, to_event_at timestamptz, lease_ms bigint
) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
  UPDATE rollcall.projectors
     SET log_id = to_log_id, position = to_position, event_id = to_event_id,
         event_at = coalesce(to_event_at, event_at),
         held_until = clock_timestamp() + lease_ms * interval '1 millisecond', moved_at = clock_timestamp()
   WHERE name = projector AND holder = its_holder AND position IS NOT DISTINCT FROM from_position;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'projector % was taken over by another process', projector USING ERRCODE = 'RC001';
  END IF;
END
$function$;
