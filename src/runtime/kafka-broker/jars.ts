/** Kafka's jars, collected by Maven once and kept in the user's cache folder. */

import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { isAbsolute, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { BaseLogger } from 'pino'
import { run } from '../embedded-postgres-account.ts'
import { isSystemError } from '../embedded-postgres-error.ts'
import { KafkaBrokerError, lastLines } from './error.ts'
import { exists, makeOnce } from './make-once.ts'

export interface Jars {
  /** Holds the jars and what is made of them. */
  folder: string
  /** For Java's `-cp`. Always in the same order: an archive of classes is good for one order only. */
  classPath: string
}

const POM = fileURLToPath(new URL('pom.xml', import.meta.url))
/** They are 45 MB; Maven itself may have to be completed first. 25 s with a good connection. */
const MAVEN_MS = 300_000
const MAVEN_LINES = 12

/** The version of Kafka that is run. */
export async function kafkaVersion(): Promise<string> {
  return /<kafka\.version>(.+)<\/kafka\.version>/.exec(await readFile(POM, 'utf8'))![1]!
}

/** @throws KafkaBrokerError `maven_missing`, `jars_missing` when they are not in the cache and cannot be brought there */
export async function kafkaJars(logger?: BaseLogger): Promise<Jars> {
  const pom = createHash('sha256')
    .update(await readFile(POM))
    .digest('hex')
    .slice(0, 8)
  const version = await kafkaVersion()
  const folder = join(cacheFolder(), 'rollcall', `kafka-${version}-${pom}`)
  if (!(await exists(folder))) {
    logger?.info({ folder }, `collecting the jars of Kafka ${version} with Maven; this happens once`)
    await makeOnce(folder, unfinished => collect(join(unfinished, 'jars')), MAVEN_MS + 30_000).catch(
      cause => {
        if (cause instanceof KafkaBrokerError) throw cause
        const message = `Kafka's jars cannot be kept in ${folder}: ${(cause as Error).message}. Mend that, or set XDG_CACHE_HOME.`
        throw new KafkaBrokerError('jars_missing', message, { cause })
      },
    )
  }
  const names = await readdir(join(folder, 'jars'))
  return {
    folder,
    classPath: names
      .sort()
      .map(name => join(folder, 'jars', name))
      .join(':'),
  }
}

async function collect(into: string): Promise<void> {
  const goal = ['dependency:copy-dependencies', `-DoutputDirectory=${into}`]
  // Its environment is ours: where Maven finds its repositories and proxies is the machine's affair.
  const options = { env: process.env, timeoutMs: MAVEN_MS }
  const { code, output } = await run(
    'mvn',
    ['--batch-mode', '--quiet', '--file', POM, ...goal],
    options,
  ).catch(cause => {
    if (!isSystemError(cause, 'ENOENT', 'EACCES')) throw cause
    throw new KafkaBrokerError(
      'maven_missing',
      "The command mvn cannot be run, and without Maven Kafka's jars cannot be had. Install it " +
        '(Debian: apt-get install maven).',
      { cause },
    )
  })
  if (code === 0) return
  const how = code === null ? `was stopped after ${MAVEN_MS / 1000} s` : `ended with code ${code}`
  const said = output.split('\n').filter(line => line.trim() !== '')
  throw new KafkaBrokerError(
    'jars_missing',
    `Maven could not collect Kafka's jars: it ${how}. It needs a repository that it can reach, once.${lastLines(said.slice(0, MAVEN_LINES))}`,
  )
}

function cacheFolder(): string {
  const given = process.env.XDG_CACHE_HOME
  return given && isAbsolute(given) ? given : join(homedir(), '.cache')
}
