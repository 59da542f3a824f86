-- Tasks on their way to workers through the message broker.

-- Takes waiting tasks of a type, the most urgent first, then the oldest, and holds them for the dispatcher: as many as are
-- asked for and as may stand unstarted beside those that do. The lock has several dispatchers count one after the other;
-- each statement after it sees what the one before has committed.
CREATE FUNCTION rollcall.take_to_dispatch(
  asked text, dispatch_id text, most integer, most_outstanding integer, hold_ms float8, hold_max_ms float8,
  OUT taken json, OUT outstanding integer, OUT offered_at timestamptz
)
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext('rollcall.take_to_dispatch'), hashtext(asked));
  SELECT count(*) INTO outstanding FROM rollcall.offers WHERE claim_id = dispatch_id;
  offered_at := clock_timestamp();
  WITH picked AS (
    SELECT task_id FROM rollcall.ready
     WHERE type = asked
     ORDER BY priority DESC, pending_since, task_id
     LIMIT greatest(0, least(most, most_outstanding - outstanding)) FOR UPDATE SKIP LOCKED
  ), removed AS (
    DELETE FROM rollcall.ready WHERE task_id = ANY (ARRAY (SELECT task_id FROM picked)) RETURNING *
  ), offered AS (
    INSERT INTO rollcall.offers (task_id, type, priority, pending_since, attempt, times_offered, claim_id, held_until)
    SELECT task_id, type, priority, pending_since, attempt, times_offered + 1, dispatch_id,
           offered_at + least(hold_ms * 2.0 ^ least(times_offered, 30), hold_max_ms) * interval '1 millisecond'
      FROM removed
    ON CONFLICT (task_id) DO UPDATE SET
      attempt = excluded.attempt, times_offered = excluded.times_offered, claim_id = excluded.claim_id,
      pending_since = excluded.pending_since, held_until = excluded.held_until
    RETURNING task_id, attempt, times_offered, priority, pending_since
  )
  SELECT coalesce(json_agg(json_build_object('taskId', task_id, 'attempt', attempt, 'timesOffered', times_offered)
                           ORDER BY priority DESC, pending_since, task_id), '[]')
    INTO taken FROM offered;
  outstanding := outstanding + json_array_length(taken);
END
$function$;
