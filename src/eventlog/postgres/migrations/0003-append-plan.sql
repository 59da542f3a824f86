-- Planned once for any arguments: for those of a call Postgres would plan anew each time, since so few rows look cheaper,
-- and that costs more than to append them.
ALTER FUNCTION rollcall_log.append_many(
  text[], integer[], integer[], integer[], text[], uuid[], text[], smallint[], text, text
) SET plan_cache_mode = force_generic_plan;
