/**
 * Tasks with short leases are at work while something that their heartbeats need goes away for longer than a lease.
 * Whoever lives keeps his tasks; a worker that was killed meanwhile loses his.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { migrate } from '../../../src/runtime/migrate.ts'
import { Api, until } from '../../api/fixture.ts'
import { freePort } from '../../cli/fixture.ts'
import { ROLLCALL } from '../../support/built-program.ts'
import { execute } from '../../support/postgres.ts'
import { ended, readyLine, spawnProgram } from '../harness/processes.ts'
import type { FromWorker, ToWorker } from './worker.ts'

const WORKER = fileURLToPath(new URL('./worker.ts', import.meta.url))
export const LEASE_MS = 2_000
export const AWAY_MS = 3 * LEASE_MS
/** Heartbeats are heard for so long after all is well again: a lease that was taken would be noticed. */
const AFTER_MS = 2 * LEASE_MS
const TASKS = 20
const DOOMED = 4
const PATIENCE_MS = 60_000

/** The service as a process, at one address however often it is started. */
export class ServiceProcess {
  readonly url: string
  readonly #args: string[]
  child: ChildProcess | null = null

  constructor(t: Test, databaseUrl: string, port: number) {
    this.url = `http://127.0.0.1:${port}`
    this.#args = ['serve', '--json', '--database-url', databaseUrl, '--port', String(port)]
    t.teardown(() => this.end('SIGKILL'))
  }

  async start(): Promise<void> {
    this.child = spawnProgram(ROLLCALL, this.#args)
    if (!(await readyLine(this.child))) throw new Error('the service ended before it was ready')
  }

  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    if (!this.child) return
    this.child.kill(signal)
    await ended(this.child)
  }
}

class WorkerProcess {
  readonly child: ChildProcess
  readonly began: string[] = []
  readonly aborted: string[] = []
  counts: Readonly<Record<string, number>> | null = null
  /** Of each answered heartbeat: how many attempts it held, when it came, how long none had. */
  readonly beats: { held: number; at: number; silentMs: number }[] = []

  constructor(t: Test, url: string, name: string, type: string) {
    this.child = fork(WORKER, [url, name, type], {
      execArgv: ['--import=tsx'],
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    })
    t.teardown(() => this.child.kill('SIGKILL'))
    this.child.on('message', (message: FromWorker) => {
      if ('began' in message) this.began.push(message.began)
      else if ('aborted' in message) this.aborted.push(`${message.aborted}: ${message.reason}`)
      else if ('counts' in message) this.counts = message.counts
      else this.beats.push({ ...message, at: performance.now() })
    })
  }

  tell(message: ToWorker): void {
    this.child.send(message)
  }

  async stop(): Promise<void> {
    const exited = once(this.child, 'exit')
    this.child.kill('SIGTERM')
    await exited
  }
}

let databases = 0

/** A migrated database of one's own on a server; it goes with the server. */
export async function databaseOn(server: { url: string }): Promise<string> {
  const name = `survival_${++databases}`
  const url = new URL(server.url)
  url.pathname = `/${name}`
  await execute(server.url, `CREATE DATABASE ${name}`)
  await migrate(url.href)
  return url.href
}

export interface Stage {
  databaseUrl: string
  service: ServiceProcess
  api: Api
  /** Ends the worker of the doomed tasks; to be called while heartbeats cannot be heard. */
  killOne(): void
}

export interface Drill {
  strike: (stage: Stage) => Promise<void>
  /** The heartbeats must have been without an answer for so long, or nothing was tried. */
  silentMs: number
}

let drills = 0

/** Lets it strike while tasks are at work, and looks at what became of them. */
export async function survive(t: Test, databaseUrl: string, { strike, silentMs }: Drill): Promise<void> {
  const kept = `survival.kept-${++drills}`
  const doomed = `survival.doomed-${drills}`
  const service = new ServiceProcess(t, databaseUrl, await freePort())
  await service.start()
  const api = new Api(t, service.url)
  const survivor = new WorkerProcess(t, service.url, 'survivor', kept)
  const victim = new WorkerProcess(t, service.url, 'victim', doomed)
  const submit = async (type: string, count: number): Promise<string[]> => {
    const retry = { maxAttempts: 2, initialDelayMs: 0, jitter: 0 }
    const one = { type, timeouts: { leaseMs: LEASE_MS }, retry }
    return Promise.all(Array.from({ length: count }, async () => (await api.submit(one)).taskId))
  }
  const keptIds = await submit(kept, TASKS)
  const doomedIds = await submit(doomed, DOOMED)
  await until(
    'all of them began',
    () => survivor.began.length === TASKS && victim.began.length === DOOMED,
    PATIENCE_MS,
  )
  // A worker that was never heard is another case. The ETag moves with every heartbeat.
  await until('all of them were heard', async () => {
    const answers = await Promise.all(
      [...keptIds, ...doomedIds].map(taskId => api.get(`/v1/tasks/${taskId}`)),
    )
    return answers.every(({ headers }) => headers.etag?.includes('.'))
  })

  await strike({ databaseUrl, service, api, killOne: () => victim.child.kill('SIGKILL') })
  const backAt = performance.now()
  survivor.tell({ inherit: doomed })
  await until('the tasks of the dead are done', () => areFinal(api, doomedIds), PATIENCE_MS)
  await until(
    'heartbeats were heard again for long enough, or somebody lost his task',
    () => survivor.aborted.length > 0 || survivor.beats.some(({ at }) => at > backAt + AFTER_MS),
    PATIENCE_MS,
  )
  survivor.tell({ finish: true })
  await until('all of them are final', () => areFinal(api, keptIds), PATIENCE_MS)
  await survivor.stop()

  const longestMs = Math.max(...survivor.beats.map(beat => beat.silentMs))
  const heardAfter = survivor.beats.filter(({ at }) => at > backAt)
  t.comment(
    `${kept}: the longest time without an answer to a heartbeat: ${Math.round(longestMs)} ms, leases are ${LEASE_MS} ms;` +
      ` ${heardAfter.length} heartbeats were answered afterwards`,
  )
  t.ok(longestMs >= silentMs, `no heartbeat was answered for ${silentMs} ms`)
  t.strictSame(survivor.aborted, [], 'no handler was told to stop')
  t.match(survivor.counts, {
    claimed: TASKS,
    succeeded: TASKS,
    lost: 0,
    cancelled: 0,
    refused: 0,
    undelivered: 0,
  })
  for (const taskId of keptIds)
    t.strictSame(
      await attemptsOf(api, taskId),
      ['TaskSubmitted', 'TaskStarted 1 survivor', 'TaskSucceeded 1'],
      'a task whose worker lives ends in its first attempt',
    )
  for (const taskId of doomedIds) {
    t.strictSame(
      await attemptsOf(api, taskId),
      [
        'TaskSubmitted',
        'TaskStarted 1 victim',
        'TaskAttemptTimedOut 1 lease',
        'TaskRequeued',
        'TaskStarted 2 heir',
        'TaskSucceeded 2',
      ],
      'a task whose worker was killed meanwhile ends in its second',
    )
  }
}

async function areFinal(api: Api, taskIds: readonly string[]): Promise<boolean> {
  const tasks = await Promise.all(taskIds.map(taskId => api.task(taskId)))
  return tasks.every(({ status }) => /^(SUCCESS|FAILED|CANCELLED)$/.test(status))
}

/** The events of a task, each with its attempt, and the worker or the timer. */
async function attemptsOf(api: Api, taskId: string): Promise<string[]> {
  const events = await api.history(taskId)
  return events.map(({ type, data }) => {
    const { attempt, worker, timer } = data as Record<string, unknown>
    return [type, attempt, worker ?? timer].filter(one => one !== undefined).join(' ')
  })
}
