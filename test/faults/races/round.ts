/** A round of the races: one task, and the commands that are released against it at the same moment. */
import { randomUUID } from 'node:crypto'
import type { Command, CommandEnvelope } from '../../../src/domain/commands.ts'
import type { TimeoutTimer } from '../../../src/domain/lifecycle.ts'
import { cancel, fail, start, succeed, TOKEN_A, TOKEN_B, timeout } from '../../domain/specification.ts'
import { ask, submitting } from '../../support/service-parts.ts'
import { bagOf, type Random } from '../harness/random.ts'

export const PROCESSES = 3
export const TRIGGERS = ['START', 'SUCCEED', 'FAIL', 'TIMEOUT', 'CANCEL'] as const
export type RacingTrigger = (typeof TRIGGERS)[number]

export interface Entry {
  process: number
  envelope: CommandEnvelope
}

export interface Round {
  number: number
  taskId: string
  /** What the task is when the barrier opens: waiting, or held by TOKEN_A. */
  prepared: 'PENDING' | 'PROCESSING'
  /** One is the attempt of the round, the other leaves one more. */
  maxAttempts: 1 | 2
  timer: TimeoutTimer
  /** The timer is a lease whose worker was never heard: that costs no attempt. */
  silent: boolean
  /** Whether a process has the task in its memory already. */
  warm: readonly boolean[]
  /** Each trigger once, and one of them a second time by another process, as a command that was sent again. */
  entries: readonly Entry[]
  preparation: readonly CommandEnvelope[]
}

/** Every limit has passed long before the barrier opens. */
const PASSED = { queueMs: 1, executionMs: 1, leaseMs: 1, totalMs: 1 }
const TIMERS = { PENDING: ['queue', 'total'], PROCESSING: ['execution', 'lease', 'total'] } as const

/** Draws rounds; statuses, attempts and triggers come up evenly. */
export function roundsOf(random: Random): (number: number) => Round {
  const prepared = bagOf(random, ['PENDING', 'PROCESSING'] as const)
  const maxAttempts = bagOf(random, [1, 2] as const)
  const twice = bagOf(random, TRIGGERS)
  return number => {
    const taskId = randomUUID()
    const status = prepared()
    const attempts = maxAttempts()
    const timer = random.pick<TimeoutTimer>(TIMERS[status])
    const silent = timer === 'lease' && random.chance(0.5)
    const commands: Record<RacingTrigger, Command> = {
      // Whoever races for a task that runs has a token of its own, and must not get it.
      START: start({ leaseTokenHash: status === 'PENDING' ? TOKEN_A : TOKEN_B }),
      SUCCEED: succeed({ result: { number } }),
      FAIL: fail({ retryAfterMs: 60_000 }),
      TIMEOUT: timeout(timer, {
        ...(timer === 'lease' && { leaseEndedAt: 1, lastHeartbeatAt: silent ? null : 1 }),
      }),
      CANCEL: cancel('it is in the way'),
    }
    const entries: Entry[] = TRIGGERS.map(trigger => ({
      process: random.whole(0, PROCESSES - 1),
      envelope: ask(taskId, commands[trigger]),
    }))
    const again = entries[TRIGGERS.indexOf(twice())]!
    const other = (again.process + random.whole(1, PROCESSES - 1)) % PROCESSES
    return {
      number,
      taskId,
      prepared: status,
      maxAttempts: attempts,
      timer,
      silent,
      warm: Array.from({ length: PROCESSES }, () => random.chance(0.5)),
      entries: random.shuffled([...entries, { ...again, process: other }]),
      preparation: [
        ask(
          taskId,
          submitting({
            timeouts: PASSED,
            retry: {
              maxAttempts: attempts,
              initialDelayMs: 60_000,
              factor: 1,
              maxDelayMs: 60_000,
              jitter: 0,
            },
          }),
        ),
        ...(status === 'PROCESSING' ? [ask(taskId, start({ leaseTokenHash: TOKEN_A }))] : []),
      ],
    }
  }
}
