/** A schema as text, in a stable order, to be compared with a reviewed file. */
import { execute } from './postgres.ts'

const DUMP = `SELECT line FROM (
  SELECT format('table %s %s', relname, coalesce(reloptions::text, '')) AS line, 1 AS part, relname AS place, 0 AS nth
  FROM pg_class WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'p')
  UNION ALL
  SELECT format('  %s %s%s%s%s', attname, format_type(atttypid, atttypmod),
      CASE WHEN attnotnull THEN ' not null' END,
      CASE WHEN attcollation NOT IN (0, 100) THEN ' collate ' || attcollation::regcollation END,
      ' default ' || pg_get_expr(adbin, adrelid)),
    1, relname, attnum
  FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
  LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
  WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
  UNION ALL
  SELECT format('  constraint %s %s', conname, pg_get_constraintdef(pg_constraint.oid)), 2, relname || conname, 0
  FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
  WHERE connamespace = $1::text::regnamespace AND contype <> 'n'
  UNION ALL
  SELECT indexdef, 3, indexname, 0 FROM pg_indexes WHERE schemaname = $1::text
  UNION ALL
  SELECT pg_get_functiondef(oid), 4, proname, 0 FROM pg_proc WHERE pronamespace = $1::text::regnamespace
) lines ORDER BY part, place COLLATE "C", nth`

export async function dumpSchema(url: string, schema: string): Promise<string> {
  const rows = await execute(url, DUMP, [schema])
  return `${rows.map(({ line }) => String(line).trimEnd()).join('\n')}\n`
}
