/** A worker of the demo: paints the pictures, and has the mishaps that the plan wants. */
import { createHash } from 'node:crypto'
import { rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { createWorker, done, type HandlerContext, PermanentError, type Task } from '../../sdk/worker.ts'
import { FATE_LABEL, type Fate, TASK_TYPE } from './plan.ts'
import { imagePayloadSchema, renderImage } from './render-image.ts'

export interface DemoWorkerOptions {
  url: string
  name: string
  concurrency: number
  /** Where the pictures go, and under which address they are found. */
  folder: string
  picturesUrl: string
  /** Where tasks come from, if not from the service. */
  kafkaBrokers?: string[]
}

/** A picture that is to be cancelled takes so long that it is; if nobody does, it fails. */
const SLOW = { steps: 120, stepMs: 250 }
const DRAIN_MS = 2_000
/** As short as a broker allows: the messages of a killed worker go to the others when its session has ended. */
const SESSION = { sessionMs: 6_000, heartbeatMs: 1_000 }

/** Works until this process is told to stop, or its parent is gone. */
export async function runDemoWorker(options: DemoWorkerOptions): Promise<void> {
  const { url, name, concurrency, kafkaBrokers: brokers } = options
  const worker = createWorker({
    url,
    ...(brokers && { kafka: { brokers, timeouts: SESSION } }),
    worker: name,
    concurrency,
    drainMs: DRAIN_MS,
    types: { [TASK_TYPE]: (task, context) => paint(task, context, options) },
  })
  worker.start()
  await new Promise<void>(resolve => {
    process.once('SIGTERM', () => resolve())
    // A Ctrl-C reaches the whole group; what becomes of the workers then is the parent's to say.
    process.on('SIGINT', () => {})
    // The parent holds the other end and never writes: the end comes when it is gone, in whatever way.
    process.stdin.resume().once('end', () => resolve())
  })
  await worker.stop()
  process.exit()
}

async function paint(
  task: Task<unknown>,
  context: HandlerContext,
  { folder, picturesUrl }: DemoWorkerOptions,
) {
  const payload = imagePayloadSchema.parse(task.payload)
  const fate = task.labels[FATE_LABEL] as Fate
  const png = await renderImage(payload, {
    step: async name => {
      await context.step(name)
      if (name === 'GENERATING') await mishap(fate, task, context)
    },
    progress: fraction => context.progress(fraction),
    signal: context.signal,
  })
  const file = `${task.taskId}.png`
  // Under another name first: whoever finds the picture finds all of it, also when two attempts write it.
  const unfinished = join(folder, `.${file}.${task.attempt}`)
  await writeFile(unfinished, png)
  await rename(unfinished, join(folder, file))
  const sha256 = createHash('sha256').update(png).digest('hex')
  return done(
    { file, bytes: png.length, width: payload.width, height: payload.height, sha256 },
    { resultUrl: `${picturesUrl}/${file}` },
  )
}

async function mishap(fate: Fate, task: Task<unknown>, context: HandlerContext): Promise<void> {
  const first = task.attempt === 1
  switch (fate) {
    case 'refused':
      throw new PermanentError('The prompt was refused by the content check.', { code: 'prompt_refused' })
    case 'hopeless':
      throw coded('model_crashed', 'The model crashes on this prompt.')
    case 'flaky':
      if (first) throw coded('out_of_memory', 'The GPU ran out of memory.')
      return
    case 'hang':
      if (first) standStill(task.leaseMs * 1.5)
      return
    case 'cancel-running':
      return beSlow(context)
  }
}

const coded = (code: string, message: string): Error => Object.assign(new Error(message), { code })

/** Nothing of this process moves any more, heartbeats included: to the service it is gone. */
function standStill(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}

async function beSlow({ signal, progress }: HandlerContext): Promise<void> {
  for (let step = 0; step < SLOW.steps; step++) {
    await delay(SLOW.stepMs, undefined, { signal })
    progress(step / SLOW.steps / 2)
  }
  throw coded('not_cancelled', 'This picture was to be cancelled, and nobody did.')
}
