/** The Kafka broker that `dev --kafka` and the demo start: what it needs is looked for before anything is started. */
import type { BaseLogger } from 'pino'
import type { KafkaBroker } from '../runtime/kafka-broker/kafka-broker.ts'
import { CliError, EXIT } from './failures.ts'
import { assertPortFree } from './port.ts'

/** What a machine may lack for it. */
const LACKING = ['java_missing', 'maven_missing', 'jars_missing']
const HOST = '127.0.0.1'

/**
 * @returns starts the broker, with its data in `kafka` of the data folder
 * @throws CliError that says what is missing and what to do
 */
export async function prepareKafka(
  { port }: { port: number },
  dataDir: string,
): Promise<(logger: BaseLogger) => Promise<KafkaBroker>> {
  await assertPortFree(HOST, port, '--kafka-port')
  const [{ findJava }, { kafkaJars }, { startKafkaBroker }] = await Promise.all([
    import('../runtime/kafka-broker/java.ts'),
    import('../runtime/kafka-broker/jars.ts'),
    import('../runtime/kafka-broker/kafka-broker.ts'),
  ])
  try {
    await findJava()
    await kafkaJars()
  } catch (cause) {
    const { code = '', message } = cause as { code?: string; message: string }
    if (!LACKING.includes(code)) throw cause
    const told = `${message} Or use a Kafka that runs already: --kafka-brokers host:port.`
    throw new CliError(code, told, EXIT.no, { cause })
  }
  return logger => startKafkaBroker({ dataDir, logger, ...(port !== 0 && { port }) })
}
