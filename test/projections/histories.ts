/** Random histories, written by the real engine: what users, workers and timers ask of tasks, sensible or not. */
import { randomUUID } from 'node:crypto'
import fc from 'fast-check'
import type { Command } from '../../src/domain/commands.ts'
import { nextDeadline } from '../../src/domain/deadlines.ts'
import type { Task } from '../../src/domain/task.ts'
import type { Engine } from '../../src/engine/engine.ts'
import {
  cancel,
  fail,
  note,
  release,
  retry,
  start,
  step,
  succeed,
  TOKEN_A,
  TOKEN_B,
  timeout,
} from '../domain/specification.ts'
import { ask, type ManualClock, submitting } from '../support/service-parts.ts'

const action = fc.record({
  // Weighted so that tasks live long enough to grow a history.
  ask: fc.oneof(
    { weight: 10, arbitrary: fc.constant('START' as const) },
    { weight: 5, arbitrary: fc.constantFrom('FAIL' as const, 'STEP' as const, 'due timer' as const) },
    { weight: 3, arbitrary: fc.constantFrom('RELEASE' as const, 'RETRY' as const, 'lease ends' as const) },
    { weight: 1, arbitrary: fc.constantFrom('SUCCEED' as const, 'CANCEL' as const, 'NOTE' as const) },
  ),
  stranger: fc.oneof(
    { weight: 9, arbitrary: fc.constant(false) },
    { weight: 1, arbitrary: fc.constant(true) },
  ),
  retryable: fc.oneof(
    { weight: 4, arbitrary: fc.constant(true) },
    { weight: 1, arbitrary: fc.constant(false) },
  ),
  text: fc.oneof(
    fc.string({ unit: 'binary', maxLength: 20 }),
    fc.constantFrom('\u0000', '\ud800', '…'.repeat(3_000)),
  ),
  passingMs: fc.nat(500),
})
type Action = typeof action extends fc.Arbitrary<infer A> ? A : never

const life = fc.record({
  delayMs: fc.oneof(fc.constant(null), fc.nat(400)),
  priority: fc.integer({ min: -1_000, max: 1_000 }),
  type: fc.constantFrom('image.generate', 'report'),
  actions: fc.array(action, { maxLength: 14 }),
})

/** Some tasks' lives, lived side by side. */
export const lives = fc.array(life, { minLength: 1, maxLength: 15 })
export type Lives = typeof lives extends fc.Arbitrary<infer L> ? L : never

/** Lives them through, one action of every task at a time; `between` runs after each round. */
export async function live(
  engine: Engine,
  clock: ManualClock,
  those: Lives,
  between: () => Promise<void> = async () => {},
): Promise<string[]> {
  const ids = those.map(() => randomUUID() as string)
  await engine.executeMany(
    those.map(({ delayMs, priority, type }, index) =>
      ask(ids[index]!, submitting({ delayMs, priority, type, timeouts: TIMEOUTS })),
    ),
  )
  await between()
  for (let round = 0; those.some(({ actions }) => actions[round]); round++) {
    const loaded = await engine.readMany(ids)
    clock.pass(Math.max(...those.map(({ actions }) => actions[round]?.passingMs ?? 0)))
    await engine.executeMany(
      those.flatMap(({ actions }, index) => {
        const one = loaded.get(ids[index]!)
        const does = actions[round]
        if (one?.kind !== 'task' || !does) return []
        // A timer is given its time; the clock goes on for everybody.
        const due = nextDeadline(one.task)
        if (does.ask === 'due timer' && due) clock.at = Math.max(clock.at, due.at)
        const timer = ['due timer', 'lease ends'].includes(does.ask)
        return [
          ask(
            ids[index]!,
            commandOf(does, one.task),
            timer ? { actor: { kind: 'timer', id: 'timers' } } : {},
          ),
        ]
      }),
    )
    await between()
  }
  return ids
}

const TIMEOUTS = { queueMs: 2_000, executionMs: 1_500, leaseMs: 700, totalMs: 20_000 }

function commandOf({ ask: asked, stranger, retryable, text }: Action, task: Task): Command {
  const { attempt } = task
  const fence = { attempt, leaseTokenHash: stranger ? TOKEN_B : TOKEN_A }
  switch (asked) {
    case 'START':
      return start(fence)
    case 'STEP':
      return step('GENERATING', { ...fence, context: text })
    case 'SUCCEED':
      return succeed({ ...fence, result: text, resultUrl: 'https://example.org/1.png' })
    case 'FAIL':
      return fail({ ...fence, retryable, error: { code: 'out_of_memory', message: text } })
    case 'RELEASE':
      return release({ ...fence, reason: text })
    case 'RETRY':
      return retry(text)
    case 'CANCEL':
      return cancel(text)
    case 'NOTE':
      return note(text || 'nothing')
    case 'lease ends':
      return timeout('lease', { attempt })
    default: {
      const due = nextDeadline(task)?.timer ?? 'total'
      if (due === 'retry') return retry()
      if (due === 'not_before') return start(fence)
      return timeout(due, due === 'queue' || due === 'total' ? {} : { attempt })
    }
  }
}
