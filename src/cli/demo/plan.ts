/**
 * What the demo submits, and what is to become of it: the same plan every time, so that the outcome of each task
 * is known before it begins. A task's fate travels as a label; the demo's workers act on it.
 */
import type { SubmitTask } from '../../sdk/client.ts'
import type { ImagePayload } from './render-image.ts'

/** The label that carries a fate. */
export const FATE_LABEL = 'demo'

export const FATES = {
  plain: { share: 0, outcome: 'SUCCESS' },
  /** Fails in its first attempt. */
  flaky: { share: 0.1, outcome: 'SUCCESS' },
  /** Its worker falls silent in the first attempt until the lease has ended. */
  hang: { share: 0.02, outcome: 'SUCCESS' },
  /** Fails for good at once. */
  refused: { share: 0.04, outcome: 'FAILED' },
  /** Fails in every attempt. */
  hopeless: { share: 0.03, outcome: 'FAILED' },
  /** Cancelled before a worker has it. */
  'cancel-waiting': { share: 0.04, outcome: 'CANCELLED' },
  /** Cancelled while a worker paints it. */
  'cancel-running': { share: 0.03, outcome: 'CANCELLED' },
} as const
export type Fate = keyof typeof FATES

export interface PlannedTask {
  fate: Fate
  payload: ImagePayload
  task: SubmitTask
}

export const TASK_TYPE = 'image.generate'
const SIZE = 256
/** So short that a lost worker is noticed while one watches; in earnest it is 60 s. */
const LEASE_MS = 2_000
/** Killed and hung workers cost attempts; a task that should succeed must not run out of them. */
const MANY_ATTEMPTS = 10
/** Waits until it is cancelled. */
const LONG_MS = 60 * 60 * 1_000

/**
 * How the demo's tasks go through Kafka: few at a time, so that even a slow machine begins them before they would be
 * offered again, and several partitions for each worker.
 */
export const kafkaTypes = (workers: number) => ({
  [TASK_TYPE]: { kafka: { maxOutstanding: 8 * workers, partitions: 2 * workers, offerHoldMs: 20_000 } },
})

/** The plan for so many tasks (at least one of every fate). */
export function planTasks(count: number): PlannedTask[] {
  const fates = fatesFor(count)
  const random = seeded(20_180_625)
  for (let index = fates.length - 1; index > 0; index--) {
    const other = Math.floor(random() * (index + 1))
    ;[fates[index], fates[other]] = [fates[other]!, fates[index]!]
  }
  return fates.map((fate, index) => plannedTask(fate, promptFor(index, random)))
}

function fatesFor(count: number): Fate[] {
  const fates: Fate[] = []
  for (const [fate, { share }] of Object.entries(FATES) as [Fate, { share: number }][])
    if (share > 0) fates.push(...Array<Fate>(Math.max(1, Math.round(share * count))).fill(fate))
  return [...fates, ...Array<Fate>(Math.max(0, count - fates.length)).fill('plain')]
}

function plannedTask(fate: Fate, prompt: string): PlannedTask {
  const payload = { prompt, width: SIZE, height: SIZE }
  const task: SubmitTask = {
    type: TASK_TYPE,
    payload,
    labels: { [FATE_LABEL]: fate },
    timeouts: { leaseMs: LEASE_MS, executionMs: 60_000, queueMs: 15 * 60_000, totalMs: 30 * 60_000 },
    retry: {
      maxAttempts: fate === 'hopeless' ? 3 : MANY_ATTEMPTS,
      initialDelayMs: 300,
      factor: 2,
      maxDelayMs: 1_000,
    },
    ...(fate === 'cancel-waiting' && { delayMs: LONG_MS }),
  }
  return { fate, payload, task }
}

const PLACES = ['a lake', 'hills', 'a forest', 'an island', 'mountains', 'a river', 'a harbour', 'a valley']
const TIMES = [
  'at dawn',
  'at night',
  'in winter',
  'at sunset',
  'in summer',
  'in autumn',
  'under stars',
  'in fog',
]
const EXTRAS = [
  '',
  'with a red moon',
  'after the rain',
  'seen from far away',
  'and nobody there',
  'in deep snow',
]

function promptFor(index: number, random: () => number): string {
  const pick = (words: readonly string[]) => words[Math.floor(random() * words.length)]!
  return [`${pick(PLACES)} ${pick(TIMES)}`, pick(EXTRAS), `no. ${index + 1}`]
    .filter(part => part !== '')
    .join(', ')
}

/** mulberry32: small, good enough to shuffle, the same everywhere. */
function seeded(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}
