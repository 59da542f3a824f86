/**
 * Everything that can be set, as one schema, parsed once at start: command line before environment before
 * configuration file before defaults. The rest of the program gets values.
 */
import { readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { z } from 'zod'
import { collidingTypes } from '../broker/topics.ts'
import { lifecycleSchema } from '../domain/lifecycle.ts'
import { LIMITS, NAME_PATTERN } from '../domain/limits.ts'
import { taskTypeSchema } from '../domain/task-types.ts'
import { eventStoreDBSettings, LogAddressError } from '../eventlog/eventstoredb/settings.ts'
import type { DispatchSettings } from '../workers/dispatcher.ts'
import { kafkaSecurity, kafkaSecurityFields } from './kafka-security.ts'
import { LOG_LEVELS } from './logging.ts'

/** These hand tasks to workers through Kafka, take what those say from it, and tell other services how tasks stand. */
export const KAFKA_ROLES = ['dispatcher', 'ingest', 'publisher'] as const
export const ROLES = ['api', 'projector', 'timers', ...KAFKA_ROLES] as const
export type Role = (typeof ROLES)[number]
const needsKafka = (role: Role): boolean => KAFKA_ROLES.some(one => one === role)

/** A name, an address, or one of IPv6 in brackets. */
const BROKER = /^([\w.-]+|\[[\da-fA-F:.]+\]):\d{1,5}$/

const portSchema = z.coerce.number().int().min(0).max(65_535)

const DEFAULT_PORT = 8080
const DAY_MS = 86_400_000

/** The log in the database of the read model. */
export const POSTGRES_LOG = 'postgres'
const IN_POSTGRES = `in Postgres the log is in the database of --database-url: write ${POSTGRES_LOG}`

const settingsSchema = z.strictObject({
  databaseUrl: z.url({ protocol: /^postgres(ql)?$/, error: 'must be a postgres:// address' }),
  /** Where the log is: in the database above, or at an address of EventStoreDB. */
  log: z
    .string()
    .default(POSTGRES_LOG)
    .superRefine((value, context) => {
      if (value === POSTGRES_LOG) return
      try {
        if (/^postgres(ql)?:/i.test(value)) throw new LogAddressError(IN_POSTGRES)
        eventStoreDBSettings(value)
      } catch (error) {
        if (!(error instanceof LogAddressError)) throw error
        context.addIssue({ code: 'custom', message: error.message })
      }
    }),
  host: z.string().min(1).default('127.0.0.1'),
  port: portSchema.optional(),
  /** Ask for an access key on loopback too; on another address it is asked for anyway. */
  requireKeys: z.union([z.boolean(), z.stringbool()], 'must be true or false').default(false),
  /** Serve another address than loopback without access keys: only when it is asked for by name. */
  withoutKeys: z.boolean().default(false),
  /** Requests that each key, or each address without one, may send to this process in a second; 0 is no limit. */
  rateLimit: z.coerce.number('must be a number').int().min(0).max(1_000_000).optional(),
  roles: z.array(z.enum(ROLES)).min(1).optional(),
  /** Of Kafka, `host:port`; none where workers use HTTP alone. */
  kafkaBrokers: z
    .array(z.string().regex(BROKER, 'must be host:port, such as kafka-1:9092'))
    .max(100)
    .default([]),
  ...kafkaSecurityFields,
  logLevel: z.enum(LOG_LEVELS).default('info'),
})

/**
 * All roles that can run where none are named: those of Kafka where its brokers are. Without the role `api` a process
 * listens only where it was given a port, for health and metrics; else it is null.
 */
export const serviceConfigSchema = settingsSchema
  .superRefine(({ roles, kafkaBrokers }, context) => {
    const lost = kafkaBrokers.length > 0 ? [] : (roles?.filter(needsKafka) ?? [])
    if (lost.length > 0)
      context.addIssue({
        code: 'custom',
        path: ['roles'],
        message: `${lost.join(' and ')} cannot run without --kafka-brokers`,
      })
  })
  .refine(({ requireKeys, withoutKeys }) => !(requireKeys && withoutKeys), {
    path: ['withoutKeys'],
    error: 'keys cannot be required and left out at once',
  })
  .transform((given, context) => {
    const { databaseUrl, log, host, requireKeys, withoutKeys, rateLimit, kafkaBrokers, logLevel } = given
    const possible = ROLES.filter(role => kafkaBrokers.length > 0 || !needsKafka(role))
    const roles = given.roles ?? possible
    const port = given.port ?? (roles.includes('api') ? DEFAULT_PORT : null)
    const security = kafkaSecurity(given, context)
    return {
      ...{ databaseUrl, log, host, port, requireKeys, withoutKeys, rateLimit, roles, logLevel },
      ...{ kafkaBrokers, kafkaSecurity: security },
    }
  })
export type ServiceConfig = z.output<typeof serviceConfigSchema>
type SettingName = keyof z.input<typeof serviceConfigSchema>

/** How tasks of a type are handed to workers through Kafka; over HTTP they can be claimed as well. */
const kafkaTypeSchema = z.strictObject({
  /** Messages on their way at once; the other tasks wait where their priority still counts. */
  maxOutstanding: z.int().min(1).max(10_000).default(100),
  /** Of the topic, when it is made. */
  partitions: z.int().min(1).max(1_000).default(4),
  /** A task that was not started for so long is offered again; twice as long each time. */
  offerHoldMs: z.int().min(1_000).max(DAY_MS).default(60_000),
})

export const fileConfigSchema = z.strictObject({
  types: z
    .record(z.string().regex(NAME_PATTERN), taskTypeSchema.extend({ kafka: kafkaTypeSchema.optional() }))
    .superRefine((types, context) => {
      const ofKafka = Object.keys(types).filter(type => types[type]!.kafka)
      const colliding = collidingTypes(ofKafka)
      if (colliding)
        context.addIssue({
          code: 'custom',
          message: `Kafka takes the topics of ${colliding.join(' and ')} for the same: rename one`,
        })
    })
    .default({}),
  /** Only the types named here are accepted. */
  strictTypes: z.boolean().default(false),
  /** When the roll call counts a task as overdue, and with how much lag it does not say that all is well. */
  rollCall: z
    .strictObject({
      graceMs: z.int().min(0).max(LIMITS.timeoutMs.max).optional(),
      lagBoundSeconds: z.number().positive().max(86_400).optional(),
    })
    .optional(),
  lifecycles: z
    .array(lifecycleSchema)
    .max(100)
    .refine(
      definitions =>
        new Set(['standard', ...definitions.map(({ name }) => name)]).size === definitions.length + 1,
      'each needs a name of its own, other than standard',
    )
    .default([]),
})
export type FileConfig = z.output<typeof fileConfigSchema>

/** The types whose tasks are handed out through Kafka, and how. */
export const kafkaTypes = ({ types }: FileConfig): Record<string, DispatchSettings> =>
  Object.fromEntries(Object.entries(types).flatMap(([type, { kafka }]) => (kafka ? [[type, kafka]] : [])))

/** A setting that cannot be used; the message says which, why, and where it was set. */
export class ConfigError extends Error {
  readonly code = 'config'
}

/** Reads the configuration file; without one there are no types and no lifecycles of one's own. */
export function readConfigFile(path: string | undefined): FileConfig {
  if (path === undefined) return fileConfigSchema.parse({})
  let parsed: unknown
  try {
    parsed = JSON.parse(readFileSync(path, 'utf8'))
  } catch (error) {
    throw new ConfigError(`the configuration file ${path} cannot be read: ${(error as Error).message}`, {
      cause: error,
    })
  }
  const config = fileConfigSchema.safeParse(parsed)
  if (!config.success)
    throw new ConfigError(`the configuration file ${path} is not valid:\n${z.prettifyError(config.error)}`)
  return config.data
}

const environmentSchema = z.object({
  ROLLCALL_DATABASE_URL: z.string().optional(),
  ROLLCALL_LOG: z.string().optional(),
  ROLLCALL_HOST: z.string().optional(),
  ROLLCALL_PORT: z.string().optional(),
  ROLLCALL_REQUIRE_KEYS: z.string().optional(),
  ROLLCALL_RATE_LIMIT: z.string().optional(),
  ROLLCALL_ROLES: z.string().optional(),
  ROLLCALL_KAFKA_BROKERS: z.string().optional(),
  ROLLCALL_KAFKA_TLS: z.string().optional(),
  ROLLCALL_KAFKA_CA_FILE: z.string().optional(),
  ROLLCALL_KAFKA_CERT_FILE: z.string().optional(),
  ROLLCALL_KAFKA_KEY_FILE: z.string().optional(),
  ROLLCALL_KAFKA_SASL: z.string().optional(),
  ROLLCALL_KAFKA_USERNAME: z.string().optional(),
  ROLLCALL_KAFKA_PASSWORD: z.string().optional(),
  ROLLCALL_LOG_LEVEL: z.string().optional(),
  ROLLCALL_CONFIG: z.string().optional(),
  ROLLCALL_DATA_DIR: z.string().optional(),
  ROLLCALL_URL: z.string().optional(),
  ROLLCALL_KEY: z.string().optional(),
})

const listed = (text: string | undefined): string[] | undefined => text?.split(',').map(part => part.trim())

/** What the environment sets, under the names the command line uses; empty values count as not set. */
export function readEnvironment(env: NodeJS.ProcessEnv = process.env) {
  const found = environmentSchema.parse(
    Object.fromEntries(
      Object.entries(env).filter(([name, value]) => name.startsWith('ROLLCALL_') && value !== ''),
    ),
  )
  return {
    databaseUrl: found.ROLLCALL_DATABASE_URL,
    log: found.ROLLCALL_LOG,
    host: found.ROLLCALL_HOST,
    port: found.ROLLCALL_PORT,
    requireKeys: found.ROLLCALL_REQUIRE_KEYS,
    rateLimit: found.ROLLCALL_RATE_LIMIT,
    roles: listed(found.ROLLCALL_ROLES),
    kafkaBrokers: listed(found.ROLLCALL_KAFKA_BROKERS),
    kafkaTls: found.ROLLCALL_KAFKA_TLS,
    kafkaCaFile: found.ROLLCALL_KAFKA_CA_FILE,
    kafkaCertFile: found.ROLLCALL_KAFKA_CERT_FILE,
    kafkaKeyFile: found.ROLLCALL_KAFKA_KEY_FILE,
    kafkaSasl: found.ROLLCALL_KAFKA_SASL,
    kafkaUsername: found.ROLLCALL_KAFKA_USERNAME,
    kafkaPassword: found.ROLLCALL_KAFKA_PASSWORD,
    logLevel: found.ROLLCALL_LOG_LEVEL,
    config: found.ROLLCALL_CONFIG,
    dataDir: found.ROLLCALL_DATA_DIR,
    url: found.ROLLCALL_URL,
    key: found.ROLLCALL_KEY,
  }
}

/**
 * The service's settings from layers, the first that sets a field wins.
 *
 * @throws ConfigError
 */
export function serviceConfig(...layers: Partial<Record<SettingName, unknown>>[]): ServiceConfig {
  const merged: Record<string, unknown> = {}
  for (const layer of layers)
    for (const [key, value] of Object.entries(layer))
      if (value !== undefined && merged[key] === undefined) merged[key] = value
  const known = Object.fromEntries(Object.entries(merged).filter(([key]) => key in settingsSchema.shape))
  const config = serviceConfigSchema.safeParse(known)
  if (!config.success) throw new ConfigError(`the settings are not valid:\n${z.prettifyError(config.error)}`)
  return config.data
}

type AccessSettings = Pick<ServiceConfig, 'host' | 'requireKeys' | 'withoutKeys' | 'rateLimit'>

/** Whether whoever asks has to show a key: where it was said so, and beyond loopback unless it was said otherwise. */
export const keysRequired = ({ host, requireKeys, withoutKeys }: AccessSettings): boolean =>
  requireKeys || !(withoutKeys || isLoopback(host))

/** Far more than a client needs that sends its tasks in batches; it keeps one that went wild from the others. */
const RATE_LIMIT = 2_000

/** What each caller may send in a second: nobody is limited on loopback, or where the API is open on purpose. */
export const rateLimitOf = ({ host, withoutKeys, rateLimit }: AccessSettings): number =>
  rateLimit ?? (withoutKeys || isLoopback(host) ? 0 : RATE_LIMIT)

function isLoopback(host: string): boolean {
  if (host === 'localhost' || host === '::1') return true
  return isIP(host) === 4 && host.startsWith('127.')
}
