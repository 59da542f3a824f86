/** Processes that can be killed: services, workers, whose clocks can be wrong, and projectors. */
import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { Api, until } from '../api/fixture.ts'
import { type Running, startCommand } from '../cli/fixture.ts'

const script = (path: string): string => fileURLToPath(new URL(path, import.meta.url))
const WORKER = script('./worker-process.ts')
const PROJECTOR = script('../projections/projector-process.ts')

/** What `serve` gives itself for an orderly stop, and something for a busy machine to end a process. */
export const STOP_MS = 4_500 + 2_500

/** A service as a process of its own. */
export async function serve(
  t: Test,
  databaseUrl: string,
  port: number,
  log?: string,
): Promise<{ api: Api; running: Running }> {
  const running = startCommand(['serve', '--json', '--log-level', 'silent', '--port', String(port)], {
    env: { ROLLCALL_DATABASE_URL: databaseUrl, ROLLCALL_LOG: log },
  })
  t.teardown(() => running.child.kill('SIGKILL'))
  await running.until(/"ready":true/)
  return { api: new Api(t, `http://127.0.0.1:${port}`), running }
}

/** What a worker process tells. */
export interface Told {
  began?: string
  attempt?: number
  /** What its clock said, in milliseconds. */
  clock?: number
  counts?: Record<string, number>
}

export interface WorkerProcess {
  child: ChildProcess
  told: Told[]
  exited: Promise<[number | null, NodeJS.Signals | null]>
  /** Resolves when the handler of a task began. */
  began(taskId: string): Promise<Told>
}

export interface WorkerProcessOptions {
  concurrency?: number
  drainMs?: number
  /** How far its clock is ahead, in milliseconds. */
  skewMs?: number
}

/** Starts one; killed when the test ends, if it still runs. */
export function startWorkerProcess(
  t: Test,
  url: string,
  { concurrency = 1, drainMs = 1_000, skewMs = 0 }: WorkerProcessOptions = {},
): WorkerProcess {
  const child = fork(WORKER, [url, String(concurrency), String(drainMs)], {
    execArgv: ['--import=tsx', ...(skewMs === 0 ? [] : [`--import=${skewedClock(skewMs)}`])],
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  })
  t.teardown(() => child.kill('SIGKILL'))
  const told: Told[] = []
  child.on('message', message => told.push(message as Told))
  return {
    child,
    told,
    exited: once(child, 'exit') as WorkerProcess['exited'],
    began: taskId => until(`a worker began ${taskId}`, () => told.find(one => one.began === taskId)),
  }
}

/** Starts a projector that takes small batches; `moved` resolves after so many of them. */
export function startProjectorProcess(t: Test, url: string, leaseMs: number) {
  const child = spawn(process.execPath, ['--import=tsx', PROJECTOR, url, String(leaseMs)], {
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  t.teardown(() => child.kill('SIGKILL'))
  let moved = 0
  createInterface({ input: child.stdout }).on('line', line => {
    if (line === 'moved') moved++
  })
  return {
    moved: (times: number) => until(`the projector moved ${times} times`, () => moved >= times),
    kill: async () => {
      const exited = once(child, 'exit')
      child.kill('SIGKILL')
      await exited
    },
  }
}

/** A module that moves what a process believes the time to be. */
const skewedClock = (ms: number): string =>
  `data:text/javascript,${encodeURIComponent(`
    const now = Date.now
    globalThis.Date = class extends Date {
      constructor(...asked) {
        if (asked.length === 0) super(now() + ${ms})
        else super(...asked)
      }
      static now() {
        return now() + ${ms}
      }
    }`)}`
