/** The Java that the broker runs on. */

import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { run } from '../embedded-postgres-account.ts'
import { KafkaBrokerError } from './error.ts'

export interface Java {
  command: string
  /** Tells this build of Java from others. */
  build: string
}

/** What Kafka 4's broker asks for. */
const LOWEST = 17
const INSTALL = `Install a Java of version ${LOWEST} or newer (a runtime is enough; Debian: apt-get install default-jre-headless)`

/**
 * The Java of JAVA_HOME, else that of the path.
 *
 * @throws KafkaBrokerError `java_missing` also when it is too old
 */
export async function findJava(): Promise<Java> {
  const home = process.env.JAVA_HOME
  const command = home ? join(home, 'bin', 'java') : 'java'
  const from = home ? `${command}, which JAVA_HOME names,` : 'The command java'
  const { code, output } = await run(command, ['-version']).catch(cause => {
    throw new KafkaBrokerError('java_missing', `${from} cannot be run. ${INSTALL}.`, { cause })
  })
  // "17.0.15" or, up to 8, "1.8.0_402".
  const [, first, second] = /version "(\d+)(?:\.(\d+))?/.exec(output) ?? []
  const version = Number(first === '1' ? second : first)
  if (code !== 0 || !(version >= LOWEST))
    throw new KafkaBrokerError(
      'java_missing',
      `${from} is of no use to Kafka: to "-version" it answers ${JSON.stringify(output.trim())}. ${INSTALL}.`,
    )
  return { command, build: createHash('sha256').update(output).digest('hex').slice(0, 12) }
}
