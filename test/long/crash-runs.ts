/**
 * A crash run: clients submit, workers work, and at random moments one worker and the service get SIGKILL; the
 * service starts again on what is left. In the end every accepted task is final, with one outcome for its run,
 * the rows are the fold, and the chains of hashes are whole. All that is random comes from the seed.
 */
import assert from 'node:assert/strict'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { type Audit, auditLog } from '../../src/engine/audit.ts'
import { POSTGRES_LOG } from '../../src/runtime/config.ts'
import { startEmbeddedPostgres } from '../../src/runtime/embedded-postgres.ts'
import { openLog } from '../../src/runtime/open-log.ts'
import { type Client, createClient, RollcallError } from '../../src/sdk/client.ts'
import type { LogKind } from '../faults/harness/kinds.ts'
import { ended, readyLine, script, spawnProgram } from '../faults/harness/processes.ts'
import { Random } from '../faults/harness/random.ts'
import { ROLLCALL } from '../support/built-program.ts'
import { differences } from '../support/compare.ts'
import {
  type SpawnedEventStoreDBDouble,
  spawnEventStoreDBDouble,
} from '../support/eventstoredb-double/spawn.ts'

export interface CrashOptions {
  tasks?: number
  clients?: number
  workers?: number
  /** Where the log is: in the service's own Postgres, or on the double of EventStoreDB, which is not killed. */
  on?: LogKind
  log?: (line: string) => void
}

export interface CrashReport {
  seed: number
  outcomes: Record<string, number>
  /** Attempts that began, and those that ended by a lost lease. */
  started: number
  leasesLost: number
  events: number
  seconds: number
}

const ENDS = ['succeeds', 'fails_first', 'fails', 'fails_for_good'] as const
export interface CrashPayload {
  number: number
  ends: (typeof ENDS)[number]
  workMs: number
  steps: boolean
}

/** What becomes of a task that nobody cancels. */
const EXPECTED: Record<CrashPayload['ends'], 'SUCCESS' | 'FAILED'> = {
  succeeds: 'SUCCESS',
  fails_first: 'SUCCESS',
  fails: 'FAILED',
  fails_for_good: 'FAILED',
}

const LEASE_MS = 2_000
/** Over how long the clients submit; the kills fall into this time. */
const TRAFFIC_MS = 5_000
/** Long enough to keep the workers busy, so that whoever is killed has something in hand. */
const WORK_MS = 400
const CALL_MS = 90_000
const SETTLE_MS = 90_000
const READY_MS = 60_000
const STOP_MS = 15_000

/** @throws AssertionError that names the seed */
export async function crashRun(seed: number, options: CrashOptions = {}): Promise<CrashReport> {
  const run = new CrashRun(seed, options)
  try {
    return await run.run()
  } catch (error) {
    throw new Error(`crash run with seed ${seed} failed: ${(error as Error).message}`, { cause: error })
  } finally {
    await run.cleanUp()
  }
}

/** What a client does with one task. */
interface Plan {
  payload: CrashPayload
  pauseMs: number
  cancels: boolean
}

interface Accepted extends CrashPayload {
  taskId: string
  cancelled: boolean
}

class CrashRun {
  readonly #seed: number
  readonly #options: Required<CrashOptions>
  readonly #random: Random
  readonly #children = new Set<ChildProcess>()
  readonly #accepted: Accepted[] = []
  readonly #began = performance.now()
  #dataDir = ''
  #port = 0
  #logServer: SpawnedEventStoreDBDouble | null = null

  constructor(seed: number, options: CrashOptions) {
    this.#seed = seed
    this.#options = { tasks: 500, clients: 4, workers: 3, on: 'postgres', log: () => {}, ...options }
    this.#random = new Random(seed)
  }

  async run(): Promise<CrashReport> {
    const { tasks, clients, workers } = this.#options
    this.#dataDir = await mkdtemp(join(tmpdir(), 'rollcall-crash-'))
    // As root the database runs as another user, who has to pass.
    await chmod(this.#dataDir, 0o755)
    this.#port = await freePort()
    if (this.#options.on === 'eventstoredb') this.#logServer = await spawnEventStoreDBDouble(null)
    let service = await this.#startService()
    const crew = await Promise.all(
      Array.from({ length: workers }, (_, index) => this.#startWorker(`worker-${index}`)),
    )

    const killsServiceAt = this.#random.between(0.1, 0.9) * TRAFFIC_MS
    const killsWorkerAt = this.#random.between(0.1, 1) * TRAFFIC_MS
    const victim = this.#random.pick(crew)
    // Drawn before anything runs side by side, so that the seed decides whatever the order.
    const plans = Array.from({ length: clients }, (_, index) =>
      Array.from({ length: tasks / clients }, (_, nth) => this.#plan(index * (tasks / clients) + nth)),
    )
    const crashes = [
      this.#after(killsServiceAt, async () => {
        await this.#kill(service, 'the service')
        service = await this.#startService()
      }),
      this.#after(killsWorkerAt, () => this.#kill(victim, 'a worker')),
    ]
    await Promise.all([...plans.map(plan => this.#submit(plan)), ...crashes])
    this.#say(`${this.#accepted.length} tasks are accepted`)
    await this.#settle()
    await Promise.all(crew.filter(worker => worker !== victim).map(worker => this.#stop(worker)))
    await this.#stop(service)
    return this.#examine()
  }

  /** What a task does, what its client does, and when. */
  #plan(number: number): Plan {
    const ends = this.#random.chance(0.7) ? 'succeeds' : this.#random.pick(ENDS)
    return {
      payload: {
        number,
        ends,
        workMs: Math.floor(this.#random.between(0, WORK_MS)),
        steps: this.#random.chance(0.2),
      },
      pauseMs: this.#random.between(0, (2 * TRAFFIC_MS) / (this.#options.tasks / this.#options.clients)),
      cancels: this.#random.chance(0.05),
    }
  }

  /** One client: submits its tasks one after the other, each until it is answered. */
  async #submit(plans: readonly Plan[]): Promise<void> {
    const client = this.#client()
    for (const { payload, pauseMs, cancels } of plans) {
      const task = {
        type: 'crash.task',
        payload,
        timeouts: { leaseMs: LEASE_MS },
        retry: { maxAttempts: payload.ends === 'fails' ? 2 : 20, initialDelayMs: 50, maxDelayMs: 500 },
      }
      const idempotencyKey = `crash-${this.#seed}-${payload.number}`
      const { taskId } = await client.submit(task, { idempotencyKey })
      this.#accepted.push({ ...payload, taskId, cancelled: cancels && (await cancel(client, taskId)) })
      await sleep(pauseMs)
    }
  }

  #client(): Client {
    return createClient({ url: this.#url, timeoutMs: CALL_MS, retries: 100 })
  }

  get #url(): string {
    return `http://127.0.0.1:${this.#port}`
  }

  get #logAddress(): string {
    return this.#logServer?.address ?? POSTGRES_LOG
  }

  /** Waits until the service itself says that nothing is open and nothing lags. */
  async #settle(): Promise<void> {
    const client = this.#client()
    const until = performance.now() + SETTLE_MS
    for (;;) {
      const open = await client.list({ status: ['PENDING', 'PROCESSING', 'RETRYING'], limit: 5 })
      if (open.tasks.length === 0 && open.lagSeconds === 0) return this.#say('nothing is open any more')
      if (performance.now() > until) assert.fail(`these are still open: ${JSON.stringify(open.tasks)}`)
      await sleep(100)
    }
  }

  /** The log decides, read from the database that the last crash left. */
  async #examine(): Promise<CrashReport> {
    const postgres = await startEmbeddedPostgres({ dataDir: this.#dataDir })
    const pool = new pg.Pool({ connectionString: postgres.url, max: 2 })
    // An ended pool may still hear that the server goes.
    pool.on('error', () => {})
    const log = await openLog(this.#logAddress, { databaseUrl: postgres.url })
    try {
      const audit = await auditLog(
        log,
        this.#accepted.map(({ taskId }) => taskId),
      )
      this.#judge(audit)
      assert.deepEqual(await differences(pool, log), [], 'the rows are the fold')
      return this.#report(audit)
    } finally {
      await log.close()
      await pool.end()
      await postgres.stop()
    }
  }

  #judge(audit: Audit): void {
    const { tasks } = this.#options
    assert.equal(this.#accepted.length, tasks, 'every submit was answered in the end')
    assert.equal(audit.tasks.size, tasks, 'no submit made two tasks')
    assert.deepEqual(audit.broken, [], 'every stream folds, its chain of hashes whole')
    assert.deepEqual(audit.missing, [], 'every accepted task is final')
    assert.deepEqual(audit.doubled, [], 'no run has two outcomes')
    for (const { taskId, number, ends, cancelled } of this.#accepted) {
      const { task, outcomesByRun } = audit.tasks.get(taskId)!
      assert.deepEqual([...outcomesByRun], [[1, 1]], `task ${number} has one outcome`)
      assert.equal(task!.status, cancelled ? 'CANCELLED' : EXPECTED[ends], `the outcome of task ${number}`)
    }
  }

  #report(audit: Audit): CrashReport {
    const outcomes: Record<string, number> = {}
    let started = 0
    let leasesLost = 0
    let events = 0
    for (const one of audit.tasks.values()) {
      outcomes[one.task!.status] = (outcomes[one.task!.status] ?? 0) + 1
      started += one.task!.attempt
      leasesLost += one.task!.endedAttempts.filter(({ ended }) => ended === 'timed_out').length
      events += one.events
    }
    const seconds = Math.round(performance.now() - this.#began) / 1_000
    return { seed: this.#seed, outcomes, started, leasesLost, events, seconds }
  }

  async #startService(): Promise<ChildProcess> {
    const folder = ['--port', String(this.#port), '--data-dir', this.#dataDir]
    const service = this.#spawn(ROLLCALL, ['dev', ...folder, '--log', this.#logAddress, '--json'])
    await ready(service)
    this.#say('the service is ready')
    return service
  }

  async #startWorker(name: string): Promise<ChildProcess> {
    const worker = this.#spawn(script('test/long/crash-worker.ts'), [this.#url, name])
    await ready(worker)
    return worker
  }

  #spawn(program: readonly string[], given: string[]): ChildProcess {
    const child = spawnProgram(program, given)
    this.#children.add(child)
    child.once('exit', () => this.#children.delete(child))
    return child
  }

  async #kill(child: ChildProcess, what: string): Promise<void> {
    this.#say(`SIGKILL to ${what}`)
    child.kill('SIGKILL')
    await ended(child)
  }

  async #stop(child: ChildProcess): Promise<void> {
    child.kill('SIGTERM')
    const inTime = await Promise.race([ended(child).then(() => true), sleep(STOP_MS, false, { ref: false })])
    assert.ok(inTime, 'a process ends when it is asked to')
  }

  async #after(ms: number, what: () => Promise<void>): Promise<void> {
    await sleep(ms)
    await what()
  }

  #say(line: string): void {
    this.#options.log(`${((performance.now() - this.#began) / 1_000).toFixed(1)} s: ${line}`)
  }

  /** Whatever happened, nothing is left running; a database without its process is ended by its guard. */
  async cleanUp(): Promise<void> {
    for (const child of this.#children) {
      child.kill('SIGKILL')
      await ended(child)
    }
    await this.#logServer?.stop()
    if (this.#dataDir)
      await rm(this.#dataDir, { recursive: true, force: true, maxRetries: 20, retryDelay: 250 })
  }
}

/** @returns whether it was cancelled; a task that was faster is none of the run's failures */
async function cancel(client: Client, taskId: string): Promise<boolean> {
  try {
    await client.cancel(taskId, { reason: 'the client changed its mind' })
    return true
  } catch (error) {
    if (error instanceof RollcallError && error.code === 'task_finished') return false
    throw error
  }
}

async function ready(child: ChildProcess): Promise<void> {
  const said = await Promise.race([readyLine(child), sleep(READY_MS, null, { ref: false })])
  assert.ok(said, 'a process gets ready')
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}
