/** What the routes are given. */

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { FastifyBaseLogger, FastifyInstance, RawServerDefault } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import type { Pool } from 'pg'
import type { Logger } from 'pino'
import type { Clock } from '../engine/clock.ts'
import type { Engine } from '../engine/engine.ts'
import type { EventLog } from '../eventlog/event-log.ts'
import type { Claims } from '../workers/claims.ts'
import type { Leases } from '../workers/leases.ts'
import type { Submitter } from './submit.ts'

export interface AppParts {
  engine: Engine
  log: EventLog
  /** The read model and the work state. */
  pool: Pool
  clock: Clock
  submitter: Submitter
  claims: Claims
  leases: Leases
  logger: Logger
  /** Whether the parts of this process are fit to serve; each with its reason when it is not. */
  health: () => { name: string; ok: boolean; reason: string | null }[]
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
