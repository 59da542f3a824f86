/** A worker as anybody may write one: it reads tasks, and says what becomes of them, over the port to the broker alone. */
import { randomUUID } from 'node:crypto'
import type { Test } from 'tap'
import type { Broker, IncomingRecord, OutgoingRecord } from '../../src/broker/broker.ts'
import { tasksTopic, WORKER_EVENTS } from '../../src/broker/topics.ts'
import type { TaskMessage } from '../../src/workers/task-message.ts'
import type { WorkerEvent } from '../../src/workers/worker-events.ts'

/** What a task asks of its worker, in its payload. */
export interface Plan {
  /** So many attempts fail. */
  fails?: number
  /** A failure for good. */
  givesUp?: boolean
}

type Sent = Record<string, unknown> & { trigger: WorkerEvent['trigger']; taskId: string }

/** The two events of an attempt. Made twice they are the same: a message that comes again says nothing new. */
export function eventsOf(
  { taskId, attempt, payload }: TaskMessage,
  worker: string,
): [start: Sent, end: Sent] {
  const { fails = 0, givesUp = false } = (payload ?? {}) as Plan
  const sent = { taskId, worker, attempt, leaseToken: `${worker}/${taskId}/${attempt}` }
  const start = { trigger: 'START' as const, ...sent, commandId: `start/${attempt}` }
  const end =
    attempt > fails && !givesUp
      ? { trigger: 'SUCCEED' as const, result: { of: taskId, attempt } }
      : { trigger: 'FAIL' as const, error: { message: `attempt ${attempt}` }, retryable: !givesUp }
  return [start, { ...sent, ...end, commandId: `end/${attempt}` }]
}

export const recordOf = (event: Sent): OutgoingRecord => ({
  key: event.taskId,
  value: Buffer.from(JSON.stringify(event)),
  headers: {},
})

export interface RawWorkerOptions {
  name?: string
  /** What it sends for a task that was handed to it, and in which order; nothing for a worker that only looks. */
  says?: (task: TaskMessage, worker: string) => Sent[]
  group?: string
}

export class RawWorker {
  readonly name: string
  /** Every message that came, in its order. */
  readonly tasks: TaskMessage[] = []
  readonly records: IncomingRecord[] = []
  readonly #broker: Broker
  #says: NonNullable<RawWorkerOptions['says']>

  private constructor(broker: Broker, { name = 'raw', says = eventsOf }: RawWorkerOptions) {
    this.#broker = broker
    this.name = name
    this.#says = says
  }

  /** Begins to read the tasks of a type; it ends with the test. */
  static async start(
    t: Test,
    broker: Broker,
    type: string,
    options: RawWorkerOptions = {},
  ): Promise<RawWorker> {
    const worker = new RawWorker(broker, options)
    const topic = tasksTopic(type)
    await broker.ensureTopics([{ name: topic, partitions: 4, compacted: false }])
    const consumer = broker.consume({
      group: options.group ?? `workers-${randomUUID()}`,
      topics: [topic],
      onBatch: records => worker.#take(records),
    })
    t.teardown(() => consumer.stop())
    return worker
  }

  /** Says what there is to say about tasks. */
  async say(tasks: readonly TaskMessage[]): Promise<void> {
    const events = tasks.flatMap(task => this.#says(task, this.name))
    await this.#broker.send(WORKER_EVENTS, events.map(recordOf))
  }

  /** From now on it does its work; what it has been handed so far comes first. */
  async sayAll(): Promise<void> {
    const before = [...this.tasks]
    this.#says = eventsOf
    await this.say(before)
  }

  /** A send that fails has its batch come again: what it had sent already is sent twice. */
  async #take(records: readonly IncomingRecord[]): Promise<void> {
    const tasks = records.map(({ value }) => JSON.parse(value!.toString()) as TaskMessage)
    await this.say(tasks)
    this.tasks.push(...tasks)
    this.records.push(...records)
  }

  /** How often each task was handed to it. */
  times(): Map<string, number> {
    const times = new Map<string, number>()
    for (const { taskId } of this.tasks) times.set(taskId, (times.get(taskId) ?? 0) + 1)
    return times
  }
}

/** For a worker that reads tasks and says nothing until it is told. */
export const nothing = (): Sent[] => []
