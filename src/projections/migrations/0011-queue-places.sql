-- Where waiting tasks stand, and how long tasks of their type have taken.

-- The last tasks of a type that succeeded: their times say how long such work takes and how fast a queue moves.
CREATE INDEX tasks_succeeded ON rollcall.tasks (type, finished_at DESC) WHERE status = 'SUCCESS';

-- What is known of an offer: until when a task is handed out, or how many claimable tasks are ahead of it in its type,
-- counted up to `most`, however many there are. Read from the index of the order, and only there: the plan is kept per
-- connection from when the table was small.
CREATE FUNCTION rollcall.offer_signals(
  asked uuid, its_attempt integer, most integer,
  OUT held_until timestamptz, OUT times_offered integer, OUT ahead integer
)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
  RETURN QUERY
  SELECT o.held_until, o.times_offered, NULL::integer
    FROM rollcall.offers o WHERE o.task_id = asked AND o.attempt = its_attempt
  UNION ALL
  SELECT NULL, w.times_offered, (SELECT count(*)::integer FROM (
           SELECT FROM rollcall.ready r WHERE r.type = w.type AND r.priority > w.priority
           UNION ALL
           SELECT FROM rollcall.ready r WHERE r.type = w.type AND r.priority = w.priority
              AND (r.pending_since, r.task_id) < (w.pending_since, w.task_id)
            LIMIT most) others)
    FROM rollcall.ready w WHERE w.task_id = asked AND w.attempt = its_attempt
   LIMIT 1;
END
$function$;

-- What estimates of a type rest on: the times of its last tasks that succeeded in milliseconds (when it could be claimed,
-- start, end) and their attempts, how many wait, counted up to `waiting_most`, and since when one of those does at least.
CREATE FUNCTION rollcall.type_sample(
  asked text, succeeded_most integer, waiting_most integer,
  OUT taken_at timestamptz, OUT succeeded json, OUT waiting integer, OUT waiting_since timestamptz
)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
  SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
  taken_at := clock_timestamp();
  SELECT coalesce(json_agg(json_build_array(
           round(date_part('epoch', greatest(t.created_at, t.run_at)) * 1000),
           round(date_part('epoch', t.started_at) * 1000),
           round(date_part('epoch', t.finished_at) * 1000), t.attempt)), '[]')
    INTO succeeded
    FROM (SELECT created_at, run_at, started_at, finished_at, attempt FROM rollcall.tasks WHERE type = asked AND status = 'SUCCESS'
           ORDER BY finished_at DESC LIMIT succeeded_most) t;
  SELECT count(*), min(r.pending_since) INTO waiting, waiting_since
    FROM (SELECT pending_since FROM rollcall.ready WHERE type = asked
           ORDER BY priority DESC, pending_since, task_id LIMIT waiting_most) r;
END
$function$;
