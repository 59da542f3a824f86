-- Plans that hold whatever the statistics say. They are kept per connection, often from when the tables were small or new.

-- Planned once for any arguments: for those of a call Postgres would plan anew each time, since so few rows look cheaper,
-- and that costs more than to write them.
ALTER FUNCTION rollcall.project(json, json, json, json, json, uuid[], uuid[], uuid[])
  SET plan_cache_mode = force_generic_plan;

-- What is taken is read in the order of its index: for a table that looked small, sorting all that waits looked cheap, and
-- went on at each claim however much waited later.

-- Takes waiting tasks of these types for a claim, the most urgent first, then the oldest, and holds them until they are
-- seen started: each time that a task is taken for twice as long, up to a limit. A claim that is asked again finds what it
-- has taken, started or not, and takes no more.
--
-- "own" holds a claim to the tasks of one tenant, those among them that another tenant's claim of the same id has taken;
-- a lease does not say whose its task is.
CREATE FUNCTION rollcall.take(
  asked text[], most integer, claim text, hold_ms float8, hold_max_ms float8, own text
) RETURNS TABLE (taken_id uuid, its_attempt integer, again boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $function$
DECLARE
  picked uuid[];
BEGIN
  IF own IS NULL THEN
    RETURN QUERY
      SELECT l.task_id, l.attempt, true FROM rollcall.leases l WHERE l.claim_id = claim
      UNION
      SELECT o.task_id, o.attempt, true FROM rollcall.offers o WHERE o.claim_id = claim;
  ELSE
    RETURN QUERY
      SELECT l.task_id, l.attempt, true FROM rollcall.leases l WHERE l.claim_id = claim
         AND (SELECT t.tenant FROM rollcall.tasks t WHERE t.task_id = l.task_id) = own
      UNION
      SELECT o.task_id, o.attempt, true FROM rollcall.offers o WHERE o.claim_id = claim AND o.tenant = own;
  END IF;
  IF FOUND THEN RETURN; END IF;

  IF own IS NULL THEN
    picked := ARRAY (
      SELECT r.task_id
        FROM (SELECT DISTINCT type FROM unnest(asked) AS named (type)) AS a
       CROSS JOIN LATERAL (
             SELECT w.task_id, w.priority, w.pending_since FROM rollcall.ready w
              WHERE w.type = a.type
              ORDER BY w.priority DESC, w.pending_since, w.task_id
              LIMIT most FOR UPDATE SKIP LOCKED) AS r
       ORDER BY r.priority DESC, r.pending_since, r.task_id
       LIMIT most);
  ELSE
    picked := ARRAY (
      SELECT r.task_id
        FROM (SELECT DISTINCT type FROM unnest(asked) AS named (type)) AS a
       CROSS JOIN LATERAL (
             SELECT w.task_id, w.priority, w.pending_since FROM rollcall.ready w
              WHERE w.tenant = own AND w.type = a.type
              ORDER BY w.priority DESC, w.pending_since, w.task_id
              LIMIT most FOR UPDATE SKIP LOCKED) AS r
       ORDER BY r.priority DESC, r.pending_since, r.task_id
       LIMIT most);
  END IF;
  IF cardinality(picked) = 0 THEN RETURN; END IF;

  RETURN QUERY
    WITH taken AS (
      DELETE FROM rollcall.ready WHERE task_id = ANY (picked) RETURNING *
    ), offered AS (
      INSERT INTO rollcall.offers AS o
             (task_id, type, priority, pending_since, attempt, times_offered, claim_id, held_until, tenant)
      SELECT t.task_id, t.type, t.priority, t.pending_since, t.attempt, t.times_offered + 1, claim,
             clock_timestamp() + least(hold_ms * 2.0 ^ least(t.times_offered, 30), hold_max_ms) * interval '1 millisecond',
             t.tenant
        FROM taken t
      ON CONFLICT (task_id) DO UPDATE SET
        attempt = excluded.attempt, times_offered = excluded.times_offered, claim_id = excluded.claim_id,
        pending_since = excluded.pending_since, held_until = excluded.held_until
      RETURNING o.task_id, o.attempt, o.priority, o.pending_since
    )
    SELECT o.task_id, o.attempt, false FROM offered o ORDER BY o.priority DESC, o.pending_since, o.task_id;
END
$function$;

ALTER FUNCTION rollcall.take_to_dispatch(text, text, integer, integer, float8, float8) SET enable_bitmapscan = off;
ALTER FUNCTION rollcall.take_to_dispatch(text, text, integer, integer, float8, float8) SET enable_sort = off;
ALTER FUNCTION rollcall.take_to_dispatch(text, text, integer, integer, float8, float8)
  SET plan_cache_mode = force_generic_plan;
