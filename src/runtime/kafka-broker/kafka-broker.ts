/**
 * A real Apache Kafka for one host: `rollcall dev --kafka` and the tests run on it. It needs Java, and Maven the first
 * time, to collect the jars.
 *
 * Life of a broker: Java and the jars are found, one left from before is stopped, the storage is formatted if it is
 * new, the broker is started, and the promise resolves when a group could work with it. A guard ends it when this
 * process is gone without having stopped it. Like any child it keeps this process alive until it is stopped.
 */

import { mkdir, realpath } from 'node:fs/promises'
import { join } from 'node:path'
import type { BaseLogger } from 'pino'
import { EmbeddedPostgresError, isSystemError } from '../embedded-postgres-error.ts'
import { claimDataDir } from '../embedded-postgres-owner.ts'
import { isFree, steadyPort } from '../port.ts'
import { classArchive } from './class-archive.ts'
import { KafkaBrokerError, lastLines } from './error.ts'
import { kafkaJars } from './jars.ts'
import { findJava } from './java.ts'
import { noteBroker, stopLeftover } from './leftover.ts'
import { type BrokerExit, type BrokerProcess, launchBroker, type Program } from './process.ts'
import { untilReady } from './ready.ts'
import { prepareFolder, SETTINGS_FILE } from './storage.ts'

export { KafkaBrokerError, type KafkaBrokerErrorCode } from './error.ts'
export { kafkaVersion } from './jars.ts'
export type { BrokerExit } from './process.ts'

/** What the caller of {@link startKafkaBroker} decides. */
export interface KafkaBrokerOptions {
  /** The broker lives in `kafka` below this folder, which is created if missing. */
  dataDir: string
  /** On 127.0.0.1; by default a free one. */
  port?: number
  /** Gets every line of the broker's log, at debug. */
  logger?: BaseLogger
  /** How long the broker may take to answer; by default 60 s. */
  startTimeoutMs?: number
  /** More settings of Kafka's; what is given for its lists of listeners is added to them. */
  properties?: Readonly<Record<string, string>>
}

/** A broker of this process. */
export interface KafkaBroker {
  /** Where clients reach it; stays the same through restarts. */
  readonly brokers: readonly string[]
  readonly port: number
  /** Of the process that runs or ran last. */
  readonly pid: number
  /** Resolves when that process has ended, for whatever reason. Never rejects. */
  readonly exited: Promise<BrokerExit>
  /** Ends it within 13 s: orderly if it can be (half a second), by force if not. Safe to repeat. */
  stop(): Promise<void>
  /** As a crash of the broker: SIGKILL. Safe to repeat. */
  kill(): Promise<void>
  /** Stops it if it runs, and starts it on the same port and data. After a kill that takes 3 s longer. */
  restart(): Promise<void>
}

const PORT_ATTEMPTS = 5
const CLAIM = 'owner.'

/** @throws KafkaBrokerError that says what is missing or went wrong; then nothing is left running */
export async function startKafkaBroker(options: KafkaBrokerOptions): Promise<KafkaBroker> {
  const { dataDir, logger, startTimeoutMs = 60_000, properties } = options
  const java = await findJava()
  const jars = await kafkaJars(logger)
  const archive = await classArchive(java, jars, logger)
  const program = { java: java.command, classPath: jars.classPath, archive }
  const folder = await ownFolder(dataDir)

  const start = (fixed: number | undefined) =>
    startProcess({ program, folder, fixed, startTimeoutMs, logger, properties })
  const first = await start(options.port)
  const { port } = first
  let running = first.broker
  let lately: Promise<void> = Promise.resolve()
  // One after the other: a stop that comes while it restarts ends what that started.
  const inTurn = (step: () => Promise<void>): Promise<void> => {
    lately = lately.then(step, step)
    return lately
  }
  return {
    brokers: [`127.0.0.1:${port}`],
    port,
    get pid() {
      return running.pid
    },
    get exited() {
      return running.exited
    },
    stop: () => inTurn(() => running.stop()),
    kill: () => inTurn(() => running.kill()),
    restart: () =>
      inTurn(async () => {
        await running.stop()
        running = (await start(port)).broker
      }),
  }
}

async function ownFolder(dataDir: string): Promise<string> {
  const folder = join(dataDir, 'kafka')
  try {
    await mkdir(folder, { recursive: true })
    return await realpath(folder)
  } catch (cause) {
    if (!isSystemError(cause)) throw cause
    const message = `The data folder ${folder} cannot be used: ${cause.message}. Mend that, or choose another.`
    throw new KafkaBrokerError('data_dir_unusable', message, { cause })
  }
}

interface StartOptions {
  program: Program
  folder: string
  /** The port that it has to be. */
  fixed: number | undefined
  startTimeoutMs: number
  logger: BaseLogger | undefined
  properties: Readonly<Record<string, string>> | undefined
}

interface Started {
  broker: BrokerProcess
  port: number
}

/** Claims the folder for as long as the broker runs: two that write to it would ruin it before Kafka's own lock tells. */
async function startProcess(options: StartOptions): Promise<Started> {
  const release = await claimDataDir(options.folder, CLAIM).catch(cause => {
    if (!(cause instanceof EmbeddedPostgresError)) throw cause
    throw new KafkaBrokerError('data_dir_in_use', cause.message, { cause })
  })
  try {
    await stopLeftover(options.folder, options.logger)
    const started = await startOnSomePort(options)
    return { ...started, broker: releasing(started.broker, release) }
  } catch (error) {
    await release()
    throw error
  }
}

/** The broker, whose end is told when the folder is free again. */
function releasing(broker: BrokerProcess, release: () => Promise<void>): BrokerProcess {
  const exited = broker.exited.then(exit => release().then(() => exit))
  const then = (end: Promise<void>): Promise<void> => end.then(() => exited).then(() => {})
  return {
    pid: broker.pid,
    logTail: broker.logTail,
    get exit() {
      return broker.exit
    },
    exited,
    stop: patienceMs => then(broker.stop(patienceMs)),
    kill: () => then(broker.kill()),
  }
}

async function startOnSomePort(options: StartOptions): Promise<Started> {
  const { program, folder, fixed, startTimeoutMs, logger, properties } = options
  for (let attempt = 1; ; attempt++) {
    if (fixed !== undefined && !(await isFree(fixed))) throw portInUse(fixed)
    const port = fixed ?? (await steadyPort())
    const controllerPort = await steadyPort()
    await prepareFolder(folder, program, { port, controllerPort, properties })
    const broker = launchBroker({ program, folder, settingsFile: SETTINGS_FILE, logger })
    await noteBroker(folder, broker.pid)
    const outcome = await untilReady(broker, `127.0.0.1:${port}`, startTimeoutMs)
    if (outcome === 'ready') return { broker, port }

    await broker.stop()
    if (fixed !== undefined && !(await isFree(fixed))) throw portInUse(fixed)
    // Between our look and its start another process took one of the ports.
    const taken = outcome === 'ended' && !((await isFree(port)) && (await isFree(controllerPort)))
    if (!taken || attempt === PORT_ATTEMPTS) throw startFailed(folder, broker, outcome, startTimeoutMs)
  }
}

function portInUse(port: number): KafkaBrokerError {
  return new KafkaBrokerError(
    'port_in_use',
    `Port ${port} of 127.0.0.1, where Kafka was to listen, is in use by another process. ` +
      'Stop that, choose another port, or choose none to get a free one.',
  )
}

function startFailed(
  folder: string,
  { exit, logTail }: BrokerProcess,
  outcome: 'ended' | 'silent',
  startTimeoutMs: number,
): KafkaBrokerError {
  const reason =
    outcome === 'silent'
      ? `it did not answer within ${startTimeoutMs} ms and was stopped; if the machine is slow, raise startTimeoutMs`
      : `it ended with ${exit?.signal ?? `code ${exit?.code}`}`
  return new KafkaBrokerError(
    'start_failed',
    `The Kafka broker of ${folder} did not start: ${reason}.${lastLines(logTail)}`,
  )
}
