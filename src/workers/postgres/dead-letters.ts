/** `dead_letters` in Postgres. */
import type { Pool, PoolClient } from 'pg'
import type { IncomingRecord } from '../../broker/broker.ts'
import { LIMITS } from '../../domain/limits.ts'
import { cutText, storableText } from '../../domain/text.ts'
import { inTransaction } from '../../projections/database.ts'
import {
  type DeadLetter,
  type DeadLetters,
  type DeadRecord,
  type Fault,
  type LetterQuery,
  type LetterStatus,
  LISTED_BYTES,
  letterIdOf,
  type Redrive,
} from '../dead-letters.ts'

/** One statement takes so much; a record that is larger goes alone. */
const KEEP = { records: 500, bytes: 8 * 1024 * 1024 }
const MESSAGE_BYTES = 1_000

export class PostgresDeadLetters implements DeadLetters {
  readonly #pool: Pool

  constructor(pool: Pool) {
    this.#pool = pool
  }

  async keep(records: readonly DeadRecord[]): Promise<void> {
    for (const some of statementsOf(records)) await this.#keep(some)
  }

  async #keep(records: readonly DeadRecord[]): Promise<void> {
    const column = <T>(of: (one: DeadRecord) => T): T[] => records.map(of)
    await this.#pool.query({
      name: 'dead-letters-keep',
      text: `INSERT INTO rollcall.dead_letters (letter_id, topic, partition, record_offset, record_timestamp, key, value,
                                                headers, reason_code, reason_message, task_id)
             SELECT * FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::bigint[], $6::bytea[],
                                  $7::bytea[], $8::text[], $9::text[], $10::text[], $11::uuid[])
             ON CONFLICT (letter_id) DO NOTHING`,
      values: [
        column(({ record }) => letterIdOf(record)),
        column(({ record }) => record.topic),
        column(({ record }) => record.partition),
        column(({ record }) => record.offset),
        column(({ record }) => timestampOf(record)),
        column(({ record }) => record.key),
        column(({ record }) => record.value),
        column(({ record }) =>
          JSON.stringify(record.headers.map(([name, value]) => [name, value.toString('base64')])),
        ),
        column(({ fault }) => fault.code),
        column(({ fault }) => storable(fault.message)),
        column(({ fault }) => fault.taskId),
      ],
    })
  }

  async list({ status, reason, taskId, before, limit }: LetterQuery) {
    const found = await this.#pool.query<LetterRow>({
      name: 'dead-letters-list',
      text: `SELECT ${LISTED} FROM rollcall.dead_letters
              WHERE status = $1 AND ($2::text IS NULL OR reason_code = $2) AND ($3::uuid IS NULL OR task_id = $3)
                AND ($4::bigint IS NULL OR number < $4)
              ORDER BY number DESC LIMIT $5`,
      values: [status, reason, taskId, before, limit + 1],
    })
    const rows = found.rows.slice(0, limit)
    const next = found.rows.length > limit ? rows.at(-1)!.number : null
    return { letters: rows.map(letterOf), next }
  }

  async read(letterIds: readonly string[]): Promise<DeadLetter[]> {
    const found = await this.#pool.query<LetterRow>({
      name: 'dead-letters-read',
      text: `SELECT ${WHOLE} FROM rollcall.dead_letters WHERE letter_id = ANY ($1::uuid[]) ORDER BY number`,
      values: [letterIds],
    })
    return found.rows.map(letterOf)
  }

  async statuses(letterIds: readonly string[]) {
    if (letterIds.length === 0) return []
    const found = await this.#pool.query<{ letterId: string; status: LetterStatus }>({
      name: 'dead-letters-statuses',
      text: `SELECT letter_id AS "letterId", status FROM rollcall.dead_letters WHERE letter_id = ANY ($1::uuid[])`,
      values: [letterIds],
    })
    return found.rows
  }

  async waiting(): Promise<number> {
    const found = await this.#pool.query<{ count: string }>({
      name: 'dead-letters-waiting',
      text: `SELECT count(*) FROM rollcall.dead_letters WHERE status = 'waiting'`,
    })
    return Number(found.rows[0]!.count)
  }

  async redrive(letterIds: readonly string[], by: string, handle: Parameters<DeadLetters['redrive']>[2]) {
    await inTransaction(this.#pool, async client => {
      const found = await client.query<LetterRow>({
        name: 'dead-letters-redrive',
        text: `SELECT ${WHOLE} FROM rollcall.dead_letters WHERE letter_id = ANY ($1::uuid[]) AND status = 'waiting'
                ORDER BY number FOR UPDATE`,
        values: [letterIds],
      })
      const letters = found.rows.map(letterOf)
      const redrives = await handle(letters)
      for (const [index, redrive] of redrives.entries())
        if (redrive.kind !== 'untried') await redriven(client, letters[index]!.letterId, by, redrive)
    })
  }

  async discard(letterIds: readonly string[], by: string, because: string) {
    const discarded = await this.#pool.query<{ letter_id: string }>({
      name: 'dead-letters-discard',
      // Locked in the order in which a redrive locks them, so that neither waits for the other in a circle.
      text: `WITH waiting AS MATERIALIZED (
               SELECT letter_id FROM rollcall.dead_letters
                WHERE letter_id = ANY ($1::uuid[]) AND status = 'waiting' ORDER BY number FOR UPDATE)
             UPDATE rollcall.dead_letters letter
                SET status = 'discarded', settled_at = clock_timestamp(), settled_by = $2, settled_because = $3
               FROM waiting WHERE letter.letter_id = waiting.letter_id RETURNING letter.letter_id`,
      values: [letterIds, storable(by), cutText(storableText(because), LIMITS.reasonBytes)],
    })
    return discarded.rows.map(({ letter_id }) => letter_id)
  }
}

async function redriven(
  client: PoolClient,
  letterId: string,
  by: string,
  redrive: Exclude<Redrive, { kind: 'untried' }>,
): Promise<void> {
  if (redrive.kind === 'settled') {
    await client.query({
      name: 'dead-letters-settle',
      text: `UPDATE rollcall.dead_letters
                SET status = 'redriven', redrives = redrives + 1, redriven_at = clock_timestamp(),
                    settled_at = clock_timestamp(), settled_by = $2, settled_because = $3
              WHERE letter_id = $1`,
      values: [letterId, storable(by), storable(redrive.because)],
    })
    return
  }
  const { code, message, taskId } = redrive.fault
  await client.query({
    name: 'dead-letters-remains',
    text: `UPDATE rollcall.dead_letters
              SET reason_code = $2, reason_message = $3, task_id = coalesce($4, task_id), redrives = redrives + 1,
                  redriven_at = clock_timestamp()
            WHERE letter_id = $1`,
    values: [letterId, code, storable(message), taskId],
  })
}

const storable = (text: string): string => cutText(storableText(text), MESSAGE_BYTES)

/** By whoever sent the record, so it may be anything; what is no date of ours must not hold up the rest. */
const timestampOf = ({ timestamp }: IncomingRecord): number =>
  Number.isSafeInteger(timestamp) ? timestamp : -1

function* statementsOf(records: readonly DeadRecord[]): Generator<DeadRecord[]> {
  let some: DeadRecord[] = []
  let bytes = 0
  for (const one of records) {
    const { key, value, headers } = one.record
    const size = headers.reduce(
      (sum, [name, content]) => sum + name.length + content.length,
      (key?.length ?? 0) + (value?.length ?? 0),
    )
    if (some.length > 0 && (some.length === KEEP.records || bytes + size > KEEP.bytes)) {
      yield some
      some = []
      bytes = 0
    }
    some.push(one)
    bytes += size
  }
  if (some.length > 0) yield some
}

const COLUMNS = `letter_id, number, status, topic, partition, record_offset, record_timestamp, octet_length(value) AS value_bytes,
   reason_code, reason_message, task_id, kept_at, redrives, redriven_at, settled_at, settled_by, settled_because`
/** Lists carry no headers and only the beginnings: a page of them is bounded whatever the records were. */
const LISTED = `${COLUMNS}, substring(key FOR ${LISTED_BYTES}) AS key, substring(value FOR ${LISTED_BYTES}) AS value, '[]' AS headers`
const WHOLE = `${COLUMNS}, key, value, headers`

interface LetterRow {
  letter_id: string
  number: string
  status: LetterStatus
  topic: string
  partition: number
  record_offset: string
  record_timestamp: string
  key: Buffer | null
  value: Buffer | null
  value_bytes: number | null
  headers: string
  reason_code: Fault['code']
  reason_message: string
  task_id: string | null
  kept_at: Date
  redrives: number
  redriven_at: Date | null
  settled_at: Date | null
  settled_by: string | null
  settled_because: string | null
}

const letterOf = (row: LetterRow): DeadLetter => ({
  letterId: row.letter_id,
  status: row.status,
  record: {
    topic: row.topic,
    partition: row.partition,
    offset: row.record_offset,
    timestamp: Number(row.record_timestamp),
    key: row.key,
    value: row.value,
    headers: (JSON.parse(row.headers) as [string, string][]).map(
      ([name, value]) => [name, Buffer.from(value, 'base64')] as const,
    ),
  },
  valueBytes: row.value_bytes,
  fault: { code: row.reason_code, message: row.reason_message, taskId: row.task_id },
  keptAt: row.kept_at,
  redrives: row.redrives,
  redrivenAt: row.redriven_at,
  settled:
    row.settled_at === null
      ? null
      : { at: row.settled_at, by: row.settled_by!, because: row.settled_because },
})
