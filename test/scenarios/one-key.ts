/**
 * Thousands of submits with one key over three processes of a service, while processes die around the first append.
 * Clients send what was cut off to another process, as a client with its key may.
 */
import type { ChildProcess } from 'node:child_process'
import { Agent, request } from 'node:http'
import pg from 'pg'
import type { Test } from 'tap'
import { until } from '../api/fixture.ts'
import { ended, readyLine, script, spawnProgram } from '../faults/harness/processes.ts'
import { testDatabase } from '../support/postgres.ts'

/**
 * When a process dies:
 * - `before`: it has been sent submits and has read none of them.
 * - `under_way`: its append waits for the log; the log stores it when the process is no more.
 * - `unanswered`: its append is stored, and it never heard of that.
 * - `answered`: the first answer has arrived.
 * - `midway`: half of the answers have arrived.
 */
export const MOMENTS = ['before', 'under_way', 'unanswered', 'answered', 'midway'] as const
export type Moment = (typeof MOMENTS)[number]

export interface OneKeyReport {
  statuses: Record<string, number>
  taskIds: string[]
  /** Sends that were cut off and repeated elsewhere. */
  cuts: number
  /** Events of the task, as they are stored. */
  events: string[]
  /** Submits with this key that the log holds. */
  submits: number
  rows: number
  seconds: number
}

const PROCESSES = 3
const AT_ONCE = 120
const TYPE = 'one.for.all'
const KEY = 'one-for-all'
const BODY = JSON.stringify({ type: TYPE, payload: { same: true } })
/** The lock that every append takes. */
const APPEND_LOCK = '5283904617730562913'

interface ServiceProcess {
  child: ChildProcess
  url: string
}

/** @param deaths when the first process dies, and the second; the last one lives */
export async function oneKeyDrill(
  t: Test,
  submits: number,
  deaths: readonly Moment[],
): Promise<OneKeyReport> {
  if (deaths.length >= PROCESSES) throw new Error('one process has to live')
  const { url: databaseUrl } = await testDatabase(t)
  const database = new pg.Client(databaseUrl)
  await database.connect()
  t.teardown(() => database.end())
  const services = await Promise.all(Array.from({ length: PROCESSES }, () => startProcess(t, databaseUrl)))
  // What a service stores before its first task is stored before anybody dies.
  for (const { url } of services) await post(t, url, 'warm-up', JSON.stringify({ type: 'warm.up' }))

  const began = performance.now()
  const traffic = new Traffic(t, services, submits)
  // Those that die before they have answered are all that is asked until then.
  const early = deaths.filter(moment => moment !== 'answered' && moment !== 'midway')
  for (const [index, moment] of early.entries()) await dieEarly(traffic, database, services[index]!, moment)
  traffic.begin()
  for (const [index, moment] of deaths.slice(early.length).entries()) {
    const wanted = moment === 'answered' ? 1 : submits / 2
    await until(`${wanted} answers have come`, () => traffic.answered >= wanted, 120_000)
    await kill(services[early.length + index]!)
  }
  await traffic.done
  const seconds = (performance.now() - began) / 1_000
  const stored = await database.query<{ stream: string; type: string; own: boolean }>(
    `SELECT stream, type, data::json ->> 'type' = $1 AS own FROM rollcall_log.events
      WHERE stream LIKE 'task-%' ORDER BY stream, revision`,
    [TYPE],
  )
  const own = stored.rows.filter(row => row.own)
  await until('its row is there', async () => (await rowsOf(database)) > 0)
  return {
    statuses: traffic.statuses,
    taskIds: [...traffic.taskIds],
    cuts: traffic.cuts,
    events: stored.rows.filter(({ stream }) => stream === own[0]?.stream).map(({ type }) => type),
    submits: own.length,
    rows: await rowsOf(database),
    seconds,
  }
}

async function rowsOf(database: pg.Client): Promise<number> {
  const { rows } = await database.query('SELECT task_id FROM rollcall.tasks WHERE type = $1', [TYPE])
  return rows.length
}

async function startProcess(t: Test, databaseUrl: string): Promise<ServiceProcess> {
  const child = spawnProgram(script('test/scenarios/service-process.ts'), [databaseUrl])
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended(child)
  })
  const said = await readyLine(child)
  if (!said) throw new Error('a service did not start')
  return { child, url: String(said.url) }
}

async function kill({ child }: ServiceProcess): Promise<void> {
  child.kill('SIGKILL')
  await ended(child)
}

/** Sends a burst to one process, and ends it at its moment. */
async function dieEarly(
  traffic: Traffic,
  database: pg.Client,
  victim: ServiceProcess,
  moment: Moment,
): Promise<void> {
  if (moment === 'before') {
    victim.child.kill('SIGSTOP')
    await traffic.burst(victim)
    return kill(victim)
  }
  const stored = async () =>
    (await database.query(`SELECT FROM rollcall_log.events WHERE data::json ->> 'type' = $1`, [TYPE]))
      .rowCount !== 0
  // Where another has stored it before, this one appends nothing.
  const appends = !(await stored())
  await database.query('SELECT pg_advisory_lock($1)', [APPEND_LOCK])
  await traffic.burst(victim)
  await until('its append waits', async () => {
    const waiting = `SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
    return !appends || (await database.query(waiting)).rowCount !== 0
  })
  victim.child.kill(moment === 'under_way' ? 'SIGKILL' : 'SIGSTOP')
  await database.query('SELECT pg_advisory_unlock($1)', [APPEND_LOCK])
  // Nobody is left to hear of it.
  await until('the log has stored what it was given', stored)
  await kill(victim)
}

/** Clients that ask until they have an answer. */
class Traffic {
  readonly statuses: Record<string, number> = {}
  readonly taskIds = new Set<string>()
  answered = 0
  cuts = 0
  readonly done: Promise<void>
  readonly #t: Test
  readonly #services: readonly ServiceProcess[]
  readonly #submits: number
  #next = 0
  #begin!: () => void
  readonly #begun = new Promise<void>(resolve => {
    this.#begin = resolve
  })
  readonly #clients: Promise<void>[] = []

  constructor(t: Test, services: readonly ServiceProcess[], submits: number) {
    this.#t = t
    this.#services = services
    this.#submits = submits
    this.done = this.#begun.then(async () => {
      while (this.#clients.length < AT_ONCE) this.#clients.push(this.#client())
      await Promise.all(this.#clients)
    })
  }

  /** Has some clients ask this process, and returns when what they sent has left. */
  async burst(to: ServiceProcess): Promise<void> {
    const asked = Array.from({ length: AT_ONCE / PROCESSES }, () => {
      const sent = signal()
      this.#clients.push(this.#client(to, sent.resolve))
      return sent.promise
    })
    await Promise.all(asked)
  }

  /** Lets all clients go on, with any process. */
  begin(): void {
    this.#begin()
  }

  async #client(first?: ServiceProcess, onSent?: () => void): Promise<void> {
    let to = first
    while (this.#next < this.#submits) {
      const index = this.#next++
      for (let tries = 0; ; tries++) {
        if (tries > 100) throw new Error('nobody answers')
        const service = to ?? this.#services[(index + tries) % PROCESSES]!
        const answer = await post(this.#t, service.url, KEY, BODY, onSent)
        to = undefined
        if (answer) {
          this.#note(answer)
          break
        }
        this.cuts++
        await this.#begun
      }
      await this.#begun
    }
  }

  #note({ status, taskId }: Answer): void {
    this.answered++
    this.statuses[status] = (this.statuses[status] ?? 0) + 1
    this.taskIds.add(taskId)
  }
}

function signal(): { promise: Promise<void>; resolve: () => void } {
  let resolve!: () => void
  const promise = new Promise<void>(done => {
    resolve = done
  })
  return { promise, resolve }
}

interface Answer {
  status: number
  taskId: string
}

const agents = new WeakMap<Test, Agent>()
function agentOf(t: Test): Agent {
  let agent = agents.get(t)
  if (!agent) {
    agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE })
    agents.set(t, agent)
    t.teardown(() => agent?.destroy())
  }
  return agent
}

/** One submit; null where the connection was cut before there was an answer. */
function post(t: Test, url: string, key: string, body: string, onSent?: () => void): Promise<Answer | null> {
  return new Promise(resolve => {
    const sent = request(
      `${url}/v1/tasks`,
      {
        method: 'POST',
        agent: agentOf(t),
        headers: {
          'content-type': 'application/json',
          'content-length': Buffer.byteLength(body),
          'idempotency-key': key,
        },
      },
      response => {
        const parts: Buffer[] = []
        response.on('data', part => parts.push(part))
        response.on('error', () => resolve(null))
        response.on('end', () => {
          const text = Buffer.concat(parts).toString('utf8')
          if (!response.complete) return resolve(null)
          const { taskId } = JSON.parse(text) as { taskId?: string }
          resolve({ status: response.statusCode ?? 0, taskId: taskId ?? text })
        })
      },
    )
    sent.on('error', () => resolve(null))
    sent.on('finish', () => onSent?.())
    sent.end(body)
  })
}
