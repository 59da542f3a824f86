/** The processes of Java: the broker's, watched and stopped, and that of Kafka's tool for storage. */

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import type { BaseLogger } from 'pino'
import { CLEAN_ENVIRONMENT, run } from '../embedded-postgres-account.ts'
import { KafkaBrokerError, lastLines } from './error.ts'

/** How the broker's process ended. */
export interface BrokerExit {
  code: number | null
  signal: string | null
}

/** With what Kafka is run. */
export interface Program {
  java: string
  classPath: string
  /** An archive of loaded classes, for a faster start. */
  archive?: string | undefined
}

export interface BrokerProcess {
  readonly pid: number
  /** Null while it runs. */
  readonly exit: BrokerExit | null
  readonly exited: Promise<BrokerExit>
  readonly logTail: readonly string[]
  /** Orderly if it can be, by force after `patienceMs` (10 s by default); safe to repeat. */
  stop(patienceMs?: number): Promise<void>
  /** As a crash; safe to repeat. */
  kill(): Promise<void>
}

export interface LaunchOptions {
  program: Program
  /** Its working folder, which holds the file of its settings. */
  folder: string
  settingsFile: string
  moreFlags?: readonly string[]
  logger?: BaseLogger | undefined
}

const HEAP = ['-Xms64m', '-Xmx256m']
/** For a small broker that is started often: one collector thread, and no time spent on optimising. */
const FLAGS = [
  '-XX:+UseSerialGC',
  '-XX:TieredStopAtLevel=1',
  '-XX:-UsePerfData',
  '-XX:+ExitOnOutOfMemoryError',
  '-Djava.awt.headless=true',
  '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn',
  '-Dorg.slf4j.simpleLogger.showDateTime=true',
  '-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS',
]
const FORMAT_MS = 60_000
const STOP_PATIENCE_MS = 10_000
const KILL_PATIENCE_MS = 3_000
const TAIL_LINES = 30
const STACK_FRAME = /^\s+at /
const LINE_CHARACTERS = 400

/**
 * Stands by until nothing can come from us any more, because this process is gone, in whatever way, and then ends the
 * broker: asks it, and 10 s later does not ask. It can be late by moments only, so that the id is still the broker's.
 */
const GUARD = `read -r line
kill -TERM "$1" || exit
for second in 1 2 3 4 5 6 7 8 9 10; do sleep 1; kill -0 "$1" || exit; done
kill -KILL "$1"`

/** Prepares a folder for data; `settingsFile` names it. @throws KafkaBrokerError `start_failed` */
export async function formatStorage(
  { java, classPath, archive }: Program,
  options: { folder: string; settingsFile: string; clusterId: string },
): Promise<void> {
  const { folder, settingsFile, clusterId } = options
  const format = ['kafka.tools.StorageTool', 'format', '--cluster-id', clusterId, '--config', settingsFile]
  const args = [...FLAGS, ...shared(archive), '-cp', classPath, ...format]
  const { code, output } = await run(java, args, { cwd: folder, timeoutMs: FORMAT_MS })
  if (code === 0) return
  const said = output.trimEnd().split('\n').slice(-TAIL_LINES)
  throw new KafkaBrokerError(
    'start_failed',
    `Kafka's tool could not prepare the storage in ${folder} (code ${code}).${lastLines(said)}`,
  )
}

/** Starts a broker; whether it answers is another question. */
export function launchBroker({
  program,
  folder,
  settingsFile,
  moreFlags = [],
  logger,
}: LaunchOptions): BrokerProcess {
  const flags = [...HEAP, ...FLAGS, ...shared(program.archive), ...moreFlags]
  const child = spawn(program.java, [...flags, '-cp', program.classPath, 'kafka.Kafka', settingsFile], {
    cwd: folder,
    env: CLEAN_ENVIRONMENT,
    // A session of its own: a Ctrl-C meant for us does not end it first.
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const logTail: string[] = []
  for (const stream of [child.stdout, child.stderr])
    createInterface(stream).on('line', line => {
      logger?.debug({ line }, 'kafka broker')
      if (STACK_FRAME.test(line)) return
      logTail.push(line.slice(0, LINE_CHARACTERS))
      if (logTail.length > TAIL_LINES) logTail.shift()
    })

  let exit: BrokerExit | null = null
  const exited = watch(child).then(how => {
    exit = how
    return how
  })
  const end = async (signal: NodeJS.Signals, withinMs: number): Promise<boolean> => {
    if (exit) return true
    child.kill(signal)
    const waited = new AbortController()
    await Promise.race([exited, delay(withinMs, undefined, { signal: waited.signal }).catch(() => {})])
    waited.abort()
    return exit !== null
  }
  const kill = async (): Promise<void> => {
    if (await end('SIGKILL', KILL_PATIENCE_MS)) return
    const message = `The Kafka broker (process ${child.pid}) did not end, not even when killed. Its disk may not be answering.`
    throw new KafkaBrokerError('stop_failed', message)
  }
  return {
    pid: child.pid ?? -1,
    get exit() {
      return exit
    },
    exited,
    logTail,
    stop: async (patienceMs = STOP_PATIENCE_MS) => {
      if (!(await end('SIGTERM', patienceMs))) await kill()
    },
    kill,
  }
}

function watch(child: ChildProcess): Promise<BrokerExit> {
  if (child.pid === undefined) return once(child, 'error').then(() => ({ code: null, signal: null }))
  const guard = spawn('/bin/sh', ['-c', GUARD, 'guard', String(child.pid)], {
    cwd: '/',
    env: CLEAN_ENVIRONMENT,
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  guard.on('error', () => {}) // the broker can do without
  return new Promise(resolve => {
    child.once('exit', (code, signal) => {
      guard.kill('SIGKILL')
      resolve({ code, signal })
    })
  })
}

/** An archive that does not fit this Java is passed over without a word. */
function shared(archive: string | undefined): string[] {
  return archive === undefined ? [] : [`-XX:SharedArchiveFile=${archive}`, '-Xshare:auto', '-Xlog:disable']
}
