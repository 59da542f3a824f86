/** How long work of a type takes and how fast its queue moves, as far as that is read: once a second for each type asked. */
import { LRUCache } from 'lru-cache'
import type { Pool } from 'pg'
import { AHEAD_MAX } from '../domain/signals.ts'
import {
  SAMPLE_MAX,
  type TypeSample,
  type TypeStatistics,
  typeStatistics,
} from '../domain/type-statistics.ts'

const FRESH_MS = 1_000
/** A type is a user's word; those asked longest ago are forgotten. */
const TYPES_MAX = 1_000

interface Kept {
  statistics: Promise<TypeStatistics | null>
  /** Null while it is being read. */
  readAt: number | null
}

export class TypeStatisticsReader {
  readonly #pool: Pool
  readonly #kept = new LRUCache<string, Kept>({ max: TYPES_MAX })

  constructor(pool: Pool) {
    this.#pool = pool
  }

  /** Null where too little is known, or nothing can be read. Reads that come together are one. */
  of(type: string): Promise<TypeStatistics | null> {
    const kept = this.#kept.get(type)
    if (kept && (kept.readAt === null || performance.now() - kept.readAt < FRESH_MS)) return kept.statistics
    const read: Kept = { readAt: null, statistics: Promise.resolve(null) }
    read.statistics = readSample(this.#pool, type)
      .then(typeStatistics)
      // An answer does without it. A database that is away is not asked by every one of them.
      .catch(() => null)
      .finally(() => {
        read.readAt = performance.now()
      })
    this.#kept.set(type, read)
    return read.statistics
  }
}

interface SampleRow {
  taken_at: Date
  succeeded: [readyAt: number, startedAt: number, finishedAt: number, attempt: number][]
  waiting: number
  waiting_since: Date | null
}

export async function readSample(pool: Pool, type: string): Promise<TypeSample> {
  const { rows } = await pool.query<SampleRow>({
    name: 'type-sample',
    text: 'SELECT * FROM rollcall.type_sample($1, $2, $3)',
    values: [type, SAMPLE_MAX, AHEAD_MAX + 1],
  })
  const row = rows[0]!
  return {
    takenAt: row.taken_at.getTime(),
    succeeded: row.succeeded.map(([readyAt, startedAt, finishedAt, attempt]) => ({
      readyAt,
      startedAt,
      finishedAt,
      attempt,
    })),
    waiting: row.waiting,
    waitingSince: row.waiting_since?.getTime() ?? null,
  }
}
