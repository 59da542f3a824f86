/** What the routes are given. */

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { FastifyBaseLogger, FastifyInstance, RawServerDefault } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import type { Pool } from 'pg'
import type { Logger } from 'pino'
import type { TaskChanges } from '../engine/changes.ts'
import type { Clock } from '../engine/clock.ts'
import type { Engine } from '../engine/engine.ts'
import type { EventLog } from '../eventlog/event-log.ts'
import type { Refusals } from '../projections/refusals.ts'
import type { RollCall } from '../projections/roll-call.ts'
import type { Claims } from '../workers/claims.ts'
import type { DeadLetters } from '../workers/dead-letters.ts'
import type { Leases } from '../workers/leases.ts'
import type { Redrives } from '../workers/redrives.ts'
import type { WorkState } from '../workers/work-state.ts'
import type { AccessRefusal, Scope } from './access.ts'
import type { Estimates } from './estimates.ts'
import type { KeyRing } from './key-ring.ts'
import type { Keys } from './keys.ts'
import type { Submitter } from './submit.ts'

export interface AppParts {
  engine: Engine
  log: EventLog
  changes: TaskChanges
  /** The read model. */
  pool: Pool
  clock: Clock
  submitter: Submitter
  claims: Claims
  leases: Leases
  workState: WorkState
  estimates: Estimates
  deadLetters: DeadLetters
  redrives: Redrives
  refusals: Pick<Refusals, 'read'>
  metrics: ApiMetrics
  rollCall: RollCall
  keys: Keys
  ring: KeyRing
  /** Without, the API is open to whoever reaches it. */
  keysRequired: boolean
  /** Requests that a key, or an address without one, may send in a second; 0 is no limit. */
  rateLimit: number
  logger: Logger
  /**
   * Whether the parts of this process are fit to serve; each with its reason when it is not. One that is not needed
   * for what this process is asked is shown, and takes no readiness away.
   */
  health: () => { name: string; ok: boolean; reason: string | null; needed?: boolean }[]
}

/** What is counted, as far as the API has to do with it. */
export interface ApiMetrics {
  readonly contentType: string
  /** Everything as text; it does not fail where the database is away. */
  scrape(): Promise<string>
  /** Counts an HTTP answer. `route` is the route's pattern, null where none took the request. */
  requested(route: string | null, method: string, status: number, seconds: number): void
  /** Counts the requests that wait, and the streams that are open. */
  opened(what: 'wait' | 'stream', change: 1 | -1): void
  /** Counts a request that was refused for who asked. */
  accessRefused(code: AccessRefusal, scope: Scope): void
}

/** The application, with requests typed by their zod schemas. */
export type TypedApp = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  ZodTypeProvider
>

/** Batches and reports carry many; their number is bounded beside their bytes. */
export const BATCH_BODY_BYTES = 16 * 1024 * 1024
