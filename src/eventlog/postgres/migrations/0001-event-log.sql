-- The append-only log. Run once by src/runtime/migrate.ts, inside a transaction, in a schema of its own.

-- Which log this is. A dump restored elsewhere keeps the id; followers notice an older copy by event ids.
CREATE TABLE rollcall_log.log_identity (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  only_row boolean NOT NULL DEFAULT true,
  CONSTRAINT log_identity_pkey PRIMARY KEY (only_row),
  CONSTRAINT log_identity_only_row CHECK (only_row)
);
INSERT INTO rollcall_log.log_identity DEFAULT VALUES;

-- data and metadata are text, not jsonb: hashes are over bytes, and jsonb refuses or changes some of them.
-- JSON.stringify escapes NUL and lone surrogates, so its output fits text as it is.
-- Columns of fixed width stand first, the widest before the others, so that rows have no padding.
CREATE TABLE rollcall_log.events (
  position bigint NOT NULL,
  -- Informational: the time that counts is in the metadata.
  appended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  revision integer NOT NULL,
  version smallint NOT NULL,
  id uuid NOT NULL,
  stream text COLLATE "C" NOT NULL,
  type text COLLATE "C" NOT NULL,
  data text NOT NULL,
  metadata text NOT NULL,
  CONSTRAINT events_pkey PRIMARY KEY (position),
  -- Also what finds a stream's head: its last entry, so that no table of heads has to be kept.
  CONSTRAINT events_stream_revision_key UNIQUE (stream, revision)
) WITH (
  -- Rows never change: a page that vacuum visits is frozen at once and never visited again, and statistics
  -- follow a table that only grows.
  autovacuum_freeze_min_age = 0,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05
);

-- Appends to many streams in one commit.
--
-- Per member: its stream and the revision its stream must be at (-1 no stream, -2 any). Per event: its
-- member's number (from 1), its number in the member (from 1), and its columns. data and metadata are one
-- text each with a line feed between events: JSON.stringify writes no raw line feed, and splitting costs a
-- fraction of what an array with every quote escaped costs on either side.
--
-- Answers the last position before this call. Where every stream was where it was expected, that is all: the
-- caller counts on from there. Otherwise, per member: its stream's last revision before (-1 none) and whether
-- it was appended; and the members whose events stood there already, with the last of these.
--
-- Correct under READ COMMITTED only: each statement must see what was committed before it began, and the
-- statements after the lock then see every earlier append. The lock is held until the commit is visible, so
-- positions are free of gaps and become visible in their order.
CREATE FUNCTION rollcall_log.append_many(
  member_streams text[],
  member_expected integer[],
  event_members integer[],
  event_numbers integer[],
  event_streams text[],
  event_ids uuid[],
  event_types text[],
  event_versions smallint[],
  event_data text,
  event_metadata text,
  OUT base bigint,
  OUT heads integer[],
  OUT accepted boolean[],
  OUT repeated_members integer[],
  OUT repeated_positions bigint[],
  OUT repeated_revisions integer[]
) LANGUAGE plpgsql VOLATILE
-- Plans are kept per connection from when the table was small; the index is right at any size.
SET enable_seqscan = off
AS $function$
DECLARE
  as_expected boolean;
  -- Per member: where its events would stand if they were repeated, -1 nowhere. No element of these arrays
  -- is null: finding one by its number would then take a walk from the start.
  places integer[];
  first_ids uuid[];
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'append_many must run under READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
  END IF;

  PERFORM pg_advisory_xact_lock(5283904617730562913);

  SELECT coalesce(max(e.position), 0) INTO base FROM rollcall_log.events e;

  SELECT array_agg(coalesce(head.revision, -1) ORDER BY member.number) INTO heads
  FROM unnest(member_streams) WITH ORDINALITY member(stream, number)
  LEFT JOIN LATERAL (
    SELECT e.revision FROM rollcall_log.events e
    WHERE e.stream = member.stream
    ORDER BY e.revision DESC LIMIT 1
  ) head ON true;

  as_expected := heads = member_expected;
  IF NOT as_expected THEN
    -- Repeated: the same ids at the same revisions. With "any" the place is where the first id stands.
    -- Looking for it reads the whole stream: streams are bounded, and Rollcall appends with a revision.
    SELECT array_agg(asked.id ORDER BY asked.ordinal) INTO first_ids
    FROM unnest(event_numbers, event_ids) WITH ORDINALITY asked(number, id, ordinal)
    WHERE asked.number = 1;

    SELECT array_agg(
      CASE
        WHEN member.expected >= member.head THEN -1
        WHEN member.expected = -2 THEN coalesce((
          SELECT max(e.revision) FROM rollcall_log.events e
          WHERE e.stream = member.stream AND e.id = first_ids[member.number]), -1)
        ELSE member.expected + 1
      END ORDER BY member.number) INTO places
    FROM unnest(member_streams, member_expected, heads)
      WITH ORDINALITY member(stream, expected, head, number);

    SELECT array_agg(
      member.expected = member.head OR (member.expected = -2 AND member.place = -1)
      ORDER BY member.number) INTO accepted
    FROM unnest(member_expected, heads, places) WITH ORDINALITY member(expected, head, place, number);

    SELECT array_agg(repeated.member), array_agg(repeated.position), array_agg(repeated.revision)
    INTO repeated_members, repeated_positions, repeated_revisions
    FROM (
      SELECT asked.member, max(stored.position) AS position, max(stored.revision) AS revision
      FROM unnest(event_members, event_numbers, event_streams, event_ids) asked(member, number, stream, id)
      LEFT JOIN LATERAL (
        SELECT e.position, e.revision, e.id FROM rollcall_log.events e
        WHERE e.stream = asked.stream AND e.revision = places[asked.member] + asked.number - 1
        LIMIT 1
      ) stored ON true
      WHERE places[asked.member] >= 0
      GROUP BY asked.member
      HAVING bool_and(coalesce(stored.id = asked.id, false))
    ) repeated;
  END IF;

  INSERT INTO rollcall_log.events (position, stream, revision, id, type, version, data, metadata)
  SELECT base + row_number() OVER (ORDER BY e.ordinal), e.stream, heads[e.member] + e.number,
    e.id, e.type, e.version, e.data, e.metadata
  FROM unnest(
    event_members, event_numbers, event_streams, event_ids, event_types, event_versions,
    string_to_array(event_data, E'\n'), string_to_array(event_metadata, E'\n')
  ) WITH ORDINALITY e(member, number, stream, id, type, version, data, metadata, ordinal)
  WHERE as_expected OR accepted[e.member]
  ORDER BY e.ordinal;

  IF as_expected THEN heads := NULL; END IF;
END
$function$;
