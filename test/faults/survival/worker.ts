/**
 * A worker with the SDK as a process of its own: `worker.ts <url> <name> <type>`. A first attempt lasts until its parent
 * lets it end, a later one ends at once. It tells its parent what begins, what is aborted, and which heartbeats were
 * answered. At its parent's word it takes tasks of another type too, as the worker `heir`.
 */
import { once } from 'node:events'
import type { HeartbeatAnswer } from '../../../src/api/schemas/workers.ts'
import { nodeTransport } from '../../../src/sdk/node-transport.ts'
import {
  createWorker,
  type HandlerContext,
  runWorkerUntilSignal,
  type Task,
} from '../../../src/sdk/worker.ts'

export type ToWorker = { inherit: string } | { finish: true }
export type FromWorker =
  | { began: string; attempt: number }
  | { aborted: string; attempt: number; reason: string }
  | { held: number; silentMs: number }
  | { counts: Readonly<Record<string, number>> }

const [url = '', name = '', type = ''] = process.argv.slice(2)
const say = (message: FromWorker): void => {
  process.send?.(message)
}

const finish = new AbortController()
/** When anything was last known to be held; null while nothing is. */
let heardAt: number | null = null
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
  if (answer.status === 200 && address.endsWith('/heartbeat')) {
    const { results } = JSON.parse(answer.body) as HeartbeatAnswer
    const now = performance.now()
    say({ held: results.filter(({ state }) => state === 'held').length, silentMs: now - (heardAt ?? now) })
    heardAt = now
  }
  return new Response(answer.body, {
    status: answer.status,
    headers: {
      'content-type': answer.contentType,
      ...(answer.retryAfter === null ? {} : { 'retry-after': answer.retryAfter }),
    },
  })
}

async function work({ taskId, attempt }: Task<unknown>, { signal }: HandlerContext) {
  heardAt ??= performance.now()
  signal.addEventListener('abort', () => say({ aborted: taskId, attempt, reason: String(signal.reason) }))
  say({ began: taskId, attempt })
  const ending = AbortSignal.any([signal, finish.signal])
  if (attempt === 1 && !ending.aborted) await once(ending, 'abort')
  signal.throwIfAborted()
  return { attempt }
}

const workerOf = (worker: string, type: string) =>
  createWorker({
    url,
    worker,
    concurrency: 100,
    waitMs: 2_000,
    drainMs: 1_000,
    fetch: listening,
    types: { [type]: work },
  })

const worker = workerOf(name, type)
process.on('message', (message: ToWorker) => {
  if ('finish' in message) return finish.abort()
  const heir = workerOf('heir', message.inherit)
  heir.start()
  void worker.stopped.then(() => heir.stop())
})
await runWorkerUntilSignal(worker)
say({ counts: worker.counts })
process.disconnect?.()
