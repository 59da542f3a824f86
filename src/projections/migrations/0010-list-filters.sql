-- What lists are searched by: labels, correlation, tenant, errors.

-- Labels are null in rows that were written before lists knew them: what they are stands in the streams alone, so the
-- active projector's process folds such rows again, a few at a time. Whatever writes a row now writes an object.
ALTER TABLE rollcall.tasks ADD COLUMN labels jsonb, ADD COLUMN correlation_id text COLLATE "C";

-- Every move of a row adds to each index that holds it, so an index holds only the rows that are found by it. Entries
-- of labels gather in a list of bounded length before they are sorted in, and every search reads that list.
CREATE INDEX tasks_by_label ON rollcall.tasks USING gin (labels jsonb_path_ops)
  WITH (fastupdate = on, gin_pending_list_limit = 1024) WHERE labels <> '{}';
CREATE INDEX tasks_by_tenant ON rollcall.tasks (tenant, created_at, task_id) WHERE tenant IS NOT NULL;
CREATE INDEX tasks_by_correlation ON rollcall.tasks (correlation_id, created_at, task_id)
  WHERE correlation_id IS NOT NULL;
CREATE INDEX tasks_with_error ON rollcall.tasks (created_at, task_id) WHERE error_code IS NOT NULL;
CREATE INDEX tasks_unlabelled ON rollcall.tasks (task_id) WHERE labels IS NULL;

-- As before. Labels and correlation never change, so a row keeps what it has and takes them only where it has none.
CREATE OR REPLACE FUNCTION rollcall.project(
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
      hash = excluded.hash, labels = coalesce(t.labels, excluded.labels),
      correlation_id = coalesce(t.correlation_id, excluded.correlation_id)
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
