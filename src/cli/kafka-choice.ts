/** How `dev` and the demo are told of Kafka: a broker of their own, one that runs already, or none. */
import { collidingTypes } from '../broker/topics.ts'
import { type FileConfig, fileConfigSchema, kafkaTypes } from '../runtime/config.ts'
import { SELF, usageError } from './failures.ts'
import type { Terminal } from './terminal.ts'

export interface KafkaOptions {
  kafka?: boolean
  kafkaPort?: number
  kafkaBrokers?: string[]
  kafkaTypes?: string[]
}

/** Where clients of Kafka look first. */
export const KAFKA_PORT = 9092

/**
 * The broker that is to be started, null where none is. A broker of one's own is asked for by name, so it comes before
 * what the environment says of another.
 *
 * @throws CliError where the options do not go together
 */
export function ownKafka({ kafka, kafkaPort, kafkaBrokers }: KafkaOptions): { port: number } | null {
  if (kafka && kafkaBrokers)
    throw usageError('--kafka starts a broker, --kafka-brokers names one that runs already: choose one.')
  if (!kafka && kafkaPort !== undefined)
    throw usageError('--kafka-port is the port of the broker that --kafka starts: add --kafka.')
  return kafka ? { port: kafkaPort ?? KAFKA_PORT } : null
}

/** The settings without those that lead to another broker. */
export const withoutKafka = <Settings extends object>(settings: Settings): Settings =>
  filtered(settings, name => !isOfKafka(name))

/** Only the settings that say where Kafka is and how it is spoken to. */
export const onlyKafka = <Settings extends object>(settings: Settings): Settings =>
  filtered(settings, isOfKafka)

const isOfKafka = (name: string): boolean => name.startsWith('kafka')

const filtered = <Settings extends object>(settings: Settings, keep: (name: string) => boolean) =>
  Object.fromEntries(Object.entries(settings).filter(([name]) => keep(name))) as Settings

/** The configuration in which these types, too, go to workers through Kafka. @throws CliError */
export function withKafkaTypes(file: FileConfig, types: readonly string[] = []): FileConfig {
  const entry = (type: string) => ({ ...defaults(type), ...file.types[type] })
  const added = { ...file.types, ...Object.fromEntries(types.map(type => [type, entry(type)])) }
  const colliding = collidingTypes(Object.keys(kafkaTypes({ ...file, types: added })))
  if (colliding)
    throw usageError(
      `Kafka takes the topics of ${colliding.join(' and ')} for the same: leave one of them out of --kafka-types.`,
    )
  return { ...file, types: added }
}

function defaults(type: string): FileConfig['types'][string] {
  const parsed = fileConfigSchema.safeParse({ types: { [type]: { kafka: {} } } })
  const found = parsed.data?.types[type]
  if (found) return found
  throw usageError(
    `--kafka-types: ${JSON.stringify(type)} is no task type; it must match [a-z0-9][a-z0-9._-]{0,63}.`,
  )
}

/** Tells whoever has a broker now how it is put to use. */
export function sayHowToUse(brokers: readonly string[], types: readonly string[], terminal: Terminal): void {
  if (brokers.length === 0) return
  if (types.length > 0)
    terminal.hint(
      `a worker fed by Kafka: ${SELF} worker --type ${types[0]} --exec cat --kafka-brokers ${brokers.join(',')}`,
    )
  else
    terminal.aside(
      `${terminal.errorColors.yellow('No type of task goes through Kafka yet:')} start it with --kafka-types image.generate,…, ` +
        'or give types "kafka": {} in the configuration file. Until then workers get their tasks over HTTP.',
    )
}
