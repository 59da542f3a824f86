-- Who may come in, and how far: access keys, and whose task waits.

-- A key is shown once and kept as its SHA-256; that of 256 random bits needs no salt and no slow hash.
CREATE TABLE rollcall.keys (
  number       bigint GENERATED ALWAYS AS IDENTITY,
  key_id       text PRIMARY KEY,
  name         text NOT NULL,
  secret_hash  bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
  scopes       text[] NOT NULL CHECK (cardinality(scopes) > 0),
  -- The only one it reaches; null reaches all.
  tenant       text,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  created_by   text NOT NULL,
  revoked_at   timestamptz,
  revoked_by   text,
  -- Once a minute at most.
  last_used_at timestamptz
);
CREATE UNIQUE INDEX keys_by_number ON rollcall.keys (number);
-- A name stands in histories, so two that live do not share one.
CREATE UNIQUE INDEX keys_by_name ON rollcall.keys (name) WHERE revoked_at IS NULL;

-- Claims of a tenant's workers take its tasks alone, and find them at once however many others wait. Tasks without a
-- tenant are in no index for it.
ALTER TABLE rollcall.ready ADD COLUMN tenant text COLLATE "C";
ALTER TABLE rollcall.offers ADD COLUMN tenant text COLLATE "C";
CREATE INDEX ready_by_tenant ON rollcall.ready (tenant, type, priority DESC, pending_since, task_id)
  WHERE tenant IS NOT NULL;

-- As before, with whose task it is.
CREATE OR REPLACE FUNCTION rollcall.make_ready(waiting json) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $function$
BEGIN
  IF json_array_length(waiting) = 0 THEN RETURN; END IF;
  INSERT INTO rollcall.ready AS r (task_id, type, priority, pending_since, attempt, tenant)
  SELECT n.task_id, n.type, n.priority, n.pending_since, n.attempt, n.tenant
    FROM json_populate_recordset(NULL::rollcall.ready, waiting) n
   WHERE NOT EXISTS (SELECT FROM rollcall.offers o WHERE o.task_id = n.task_id AND o.attempt = n.attempt)
  ON CONFLICT (task_id) DO UPDATE SET
    pending_since = excluded.pending_since, attempt = excluded.attempt, times_offered = 0
  WHERE r.attempt < excluded.attempt;
END
$function$;

-- As before, with whose task it is.
CREATE OR REPLACE FUNCTION rollcall.take_to_dispatch(
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
    INSERT INTO rollcall.offers
           (task_id, type, priority, pending_since, attempt, times_offered, claim_id, held_until, tenant)
    SELECT task_id, type, priority, pending_since, attempt, times_offered + 1, dispatch_id,
           offered_at + least(hold_ms * 2.0 ^ least(times_offered, 30), hold_max_ms) * interval '1 millisecond', tenant
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
