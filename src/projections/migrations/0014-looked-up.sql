-- Rows are looked up by their keys. With statistics from when hardly any stood there, Postgres read all of them for each
-- row that was looked up, or once per call; such a plan is kept until the table is analysed again.

-- As before; `OFFSET 0` keeps the lookup what it says.
CREATE OR REPLACE FUNCTION rollcall.make_ready(waiting json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  IF json_array_length(waiting) = 0 THEN RETURN; END IF;
  INSERT INTO rollcall.ready AS r (task_id, type, priority, pending_since, attempt, tenant)
  SELECT n.task_id, n.type, n.priority, n.pending_since, n.attempt, n.tenant
    FROM json_populate_recordset(NULL::rollcall.ready, waiting) n
   WHERE NOT EXISTS (
         SELECT FROM rollcall.offers o WHERE o.task_id = n.task_id AND o.attempt = n.attempt OFFSET 0)
  ON CONFLICT (task_id) DO UPDATE SET
    pending_since = excluded.pending_since, attempt = excluded.attempt, times_offered = 0
  WHERE r.attempt < excluded.attempt;
END
$function$;

-- As before; the ids keep it to the rows it is about.
CREATE OR REPLACE FUNCTION rollcall.pass_not_before(waiting json, next json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  PERFORM rollcall.make_ready_again(waiting);
  UPDATE rollcall.deadlines d SET due_at = n.due_at, timer = n.timer
    FROM json_populate_recordset(NULL::rollcall.deadlines, next) n
   WHERE d.task_id = ANY (ARRAY (SELECT i.task_id FROM json_populate_recordset(NULL::rollcall.deadlines, next) i))
     AND d.task_id = n.task_id AND d.timer = 'not_before' AND d.attempt = n.attempt;
END
$function$;
