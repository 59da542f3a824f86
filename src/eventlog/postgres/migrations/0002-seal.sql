-- A log that another one has taken the place of takes no appends any more. null: this one takes appends.
ALTER TABLE rollcall_log.log_identity ADD COLUMN moved_to text;

-- Seals the log, or opens it again with null. Under the lock of append_many: whoever has it afterwards sees the seal,
-- and whoever had it before has committed.
CREATE FUNCTION rollcall_log.seal(for_log text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
  PERFORM pg_advisory_xact_lock(5283904617730562913);
  UPDATE rollcall_log.log_identity SET moved_to = for_log;
END
$function$;

-- Once for each call of append_many, whose INSERT runs under the lock, also where it stores nothing: a repeated append
-- is refused like any other. Who copies a log into a sealed one says so for its connection.
CREATE FUNCTION rollcall_log.refuse_when_sealed() RETURNS trigger
LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
  for_log text;
BEGIN
  SELECT moved_to INTO for_log FROM rollcall_log.log_identity;
  IF for_log IS NOT NULL AND coalesce(current_setting('rollcall_log.past_seal', true), '') <> 'on' THEN
    RAISE EXCEPTION 'the log is sealed' USING ERRCODE = 'RC002', DETAIL = for_log;
  END IF;
  RETURN NULL;
END
$function$;

CREATE TRIGGER events_refuse_when_sealed BEFORE INSERT ON rollcall_log.events
  FOR EACH STATEMENT EXECUTE FUNCTION rollcall_log.refuse_when_sealed();
