/**
 * A worker of a fault run, as a process of its own: `worker.ts <url> <name> <answers file> [<broker> <confirm>]`. What it
 * does is in the payload. Whatever service and broker answer it is written down at once, so that it can be held against
 * the streams.
 */
import { openSync, writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Kafka, type ProducerRecord } from 'kafkajs'
import type { ClaimAnswer, HeartbeatAnswer, ReportsAnswer } from '../../../src/api/schemas/workers.ts'
import { WORKER_EVENTS } from '../../../src/broker/topics.ts'
import { nodeTransport } from '../../../src/sdk/node-transport.ts'
import {
  createWorker,
  type HandlerContext,
  PermanentError,
  runWorkerUntilSignal,
  type Task,
} from '../../../src/sdk/worker.ts'
import { hashToken } from '../../../src/workers/worker-events.ts'
import type { WorkerAnswer } from './answers.ts'
import { digestOf, resultOf } from './answers.ts'
import { type Payload, TASK_TYPE } from './plan.ts'

const [url = '', name = '', answersPath = '', broker, confirm] = process.argv.slice(2)
const answers = openSync(answersPath, 'a')

/** One line in one write: a SIGKILL leaves it whole or not at all, and what is cut off spoils no other line. */
function note(lines: readonly WorkerAnswer[]): void {
  if (lines.length > 0) writeSync(answers, `\n${lines.map(line => JSON.stringify(line)).join('\n')}`)
}

interface SentReport {
  taskId: string
  attempt: number
  commandId: string
  trigger: string
}

function noteAnswer(path: string, sent: string, received: string): void {
  const answer: unknown = JSON.parse(received)
  if (path.endsWith('/claim'))
    note(
      (answer as ClaimAnswer).tasks.map(({ taskId, attempt, payload }) => ({
        of: 'claim',
        worker: name,
        taskId,
        attempt,
        digest: digestOf(payload),
      })),
    )
  else if (path.endsWith('/start')) {
    const { results } = answer as { results: { taskId: string; kind: string }[] }
    const { tasks } = JSON.parse(sent) as { tasks: { attempt: number }[] }
    note(
      results.flatMap(({ taskId, kind }, index) =>
        kind === 'refused'
          ? []
          : [{ of: 'start' as const, worker: name, taskId, attempt: tasks[index]!.attempt }],
      ),
    )
  } else if (path.endsWith('/report')) {
    const { reports } = JSON.parse(sent) as { reports: SentReport[] }
    note(
      (answer as ReportsAnswer).results.map((result, index) => {
        const { taskId, attempt, commandId, trigger } = reports[index]!
        const said =
          result.kind === 'refused'
            ? { said: result.code, revision: null }
            : { said: result.kind, revision: result.revision }
        return { of: 'report', taskId, attempt, commandId, trigger, ...said }
      }),
    )
  } else if (path.endsWith('/heartbeat'))
    note(
      (answer as HeartbeatAnswer).results.flatMap(({ taskId, state }) =>
        state === 'cancelled' ? [{ of: 'heartbeat' as const, taskId, said: state }] : [],
      ),
    )
}

const send = nodeTransport()
/** The SDK's own way to the service, listened to. */
const listening: typeof fetch = async (input, init) => {
  const { method, headers, body, signal } = init as RequestInit & { headers: Record<string, string> }
  const address = String(input)
  const answer = await send({
    method: method as 'GET' | 'POST',
    url: address,
    headers,
    body: (body as string | null) ?? null,
    signal: signal!,
  })
  if (answer.status === 200) noteAnswer(address, String(body), answer.body)
  return new Response(answer.body, {
    status: answer.status,
    headers: {
      'content-type': answer.contentType,
      ...(answer.retryAfter === null ? {} : { 'retry-after': answer.retryAfter }),
    },
  })
}

/** What the broker has taken, whichever part of the SDK sent it. */
function noteRecords({ topic, messages }: ProducerRecord): void {
  if (topic !== WORKER_EVENTS) return
  note(
    messages.map(({ value }) => {
      const { leaseToken, taskId, attempt, commandId, trigger } = JSON.parse(String(value)) as SentReport & {
        leaseToken: string
      }
      const leaseTokenHash = hashToken(leaseToken)
      return { of: 'record', taskId, attempt, commandId, trigger, leaseTokenHash }
    }),
  )
}

/** The SDK's own way to the broker, listened to. */
function listenToProducers(): void {
  const make = Kafka.prototype.producer
  Kafka.prototype.producer = function (...given) {
    const producer = make.apply(this, given)
    const { send } = producer
    producer.send = async record => {
      const said = await send(record)
      noteRecords(record)
      return said
    }
    producer.sendBatch = () => Promise.reject(new Error('bug: nobody listens to this'))
    return producer
  }
}

async function work(task: Task<Payload>, context: HandlerContext): Promise<unknown> {
  const { taskId, payload, attempt } = task
  if (broker) {
    const answered = confirm === 'api'
    note([{ of: 'begun', worker: name, taskId, attempt, digest: digestOf(payload), answered }])
  }
  const { program, workMs } = payload
  const { signal, step, progress } = context
  switch (program) {
    case 'dies':
      return process.kill(process.pid, 'SIGKILL')
    case 'dies_first':
      if (attempt === 1) return process.kill(process.pid, 'SIGKILL')
      break
    case 'late':
      // Nothing of this process moves meanwhile, the heartbeats of everything else in hand neither.
      if (attempt === 1) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, workMs)
      return resultOf(payload)
    case 'hangs':
      return sleep(10 * 60_000, undefined, { signal })
    case 'ignores_abort':
      await sleep(workMs)
      return resultOf(payload)
    case 'steps':
      await step('DOWNLOADING', { attempt })
      await sleep(workMs / 2, undefined, { signal })
      await step('UPLOADING', { attempt, text: payload.text.slice(0, 100) })
      break
    default:
  }
  await sleep(workMs, undefined, { signal })
  progress(0.5)
  if (program === 'fails' || program === 'overall' || (program === 'fails_first' && attempt === 1))
    throw new Error(`attempt ${attempt} of ${payload.number} fails, as it was told to`)
  if (program === 'fails_for_good') throw new PermanentError('there is no help')
  return resultOf(payload)
}

if (broker) listenToProducers()
const worker = createWorker({
  url,
  ...(broker ? { kafka: { brokers: [broker], confirm: confirm === 'none' ? 'none' : 'api' } } : {}),
  worker: name,
  concurrency: 24,
  drainMs: 1_000,
  waitMs: 5_000,
  fetch: listening,
  types: { [TASK_TYPE]: work },
})

worker.start()
process.stdout.write('{"ready":true}\n')
await runWorkerUntilSignal(worker)
