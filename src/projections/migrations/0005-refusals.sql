-- Refused commands, beside their task: the first 20, the last 20 and how many there were. They are evidence, and
-- bounded whatever a task is asked.

CREATE TABLE rollcall.refusal_counts (
  task_id    uuid PRIMARY KEY,
  count      bigint NOT NULL,
  -- The batch that was counted last: a batch that is written again after a lost answer counts once.
  last_batch uuid NOT NULL
) WITH (fillfactor = 80);

-- Slots 1 to 20 are the first refusals, 21 to 40 a ring of the last ones; `number` is the place among all.
CREATE TABLE rollcall.refusals (
  task_id    uuid NOT NULL,
  slot       smallint NOT NULL,
  number     bigint NOT NULL,
  revision   integer,
  code       text NOT NULL,
  message    text NOT NULL,
  trigger    text NOT NULL,
  actor_kind text NOT NULL,
  actor_id   text NOT NULL,
  source     text NOT NULL,
  command_id text NOT NULL,
  refused_at timestamptz NOT NULL,
  PRIMARY KEY (task_id, slot)
) WITH (fillfactor = 80);

-- Keeps a batch of refusals, as JSON in the order in which they happened. Counts are taken in the order of the
-- tasks, so that two processes that keep refusals of the same tasks wait for each other instead of deadlocking.
CREATE FUNCTION rollcall.keep_refusals(batch uuid, refusals json) RETURNS void
LANGUAGE sql SET enable_seqscan = off AS $function$
  WITH asked AS (
    SELECT (r.one ->> 'task_id')::uuid AS task_id, r.one,
           row_number() OVER (PARTITION BY (r.one ->> 'task_id')::uuid ORDER BY r.place) AS nth
      FROM json_array_elements(keep_refusals.refusals) WITH ORDINALITY AS r (one, place)
  ), sums AS (
    SELECT task_id, count(*) AS added FROM asked GROUP BY task_id
  ), counted AS (
    INSERT INTO rollcall.refusal_counts AS c (task_id, count, last_batch)
    SELECT task_id, added, keep_refusals.batch FROM sums ORDER BY task_id
    ON CONFLICT (task_id) DO UPDATE SET count = c.count + excluded.count, last_batch = excluded.last_batch
     WHERE c.last_batch <> excluded.last_batch
    RETURNING c.task_id, c.count
  ), numbered AS (
    SELECT c.task_id, a.one, c.count, c.count - s.added + a.nth AS number
      FROM counted c JOIN sums s USING (task_id) JOIN asked a USING (task_id)
  )
  INSERT INTO rollcall.refusals AS r
  SELECT n.task_id, CASE WHEN n.number <= 20 THEN n.number ELSE 21 + (n.number - 21) % 20 END, n.number,
         (n.one ->> 'revision')::integer, n.one ->> 'code', n.one ->> 'message', n.one ->> 'trigger',
         n.one ->> 'actor_kind', n.one ->> 'actor_id', n.one ->> 'source', n.one ->> 'command_id',
         (n.one ->> 'refused_at')::timestamptz
    FROM numbered n
   WHERE n.number <= 20 OR n.number > n.count - 20
  ON CONFLICT (task_id, slot) DO UPDATE SET
    number = excluded.number, revision = excluded.revision, code = excluded.code, message = excluded.message,
    trigger = excluded.trigger, actor_kind = excluded.actor_kind, actor_id = excluded.actor_id,
    source = excluded.source, command_id = excluded.command_id, refused_at = excluded.refused_at
  WHERE r.number < excluded.number;
$function$;
