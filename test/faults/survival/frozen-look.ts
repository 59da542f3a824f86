/** A process that is stopped in the middle of a look of its timers, at a step that the test names. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { Timers } from '../../../src/workers/timers.ts'
import type { WorkState } from '../../../src/workers/work-state.ts'
import { TIMEOUTS, TOKEN_A } from '../../domain/specification.ts'
import { aClaim, NEVER, SILENT, startParts, submitTasks } from '../../support/service-parts.ts'

/** Longer than the lease, and than the pause that the timers take for a gap. */
const FROZEN_MS = 2 * TIMEOUTS.leaseMs

/** Anywhere in a look; `null` is between two. */
export const STEPS = [null, 'takeLostLeases', 'dueDeadlines', 'returnOverdueOffers', 'keepLook'] as const
export type Step = (typeof STEPS)[number]

/** Stops the timers at a step for longer than a lease; the worker is heard as soon as they go on. */
export async function freezeAt(t: Test, step: Step): Promise<void> {
  const parts = await startParts(t)
  parts.projector.start()
  await submitTasks(parts.engine, 1)
  await parts.projected()
  const [claimed] = await parts.claims.claim(aClaim(), NEVER)
  if (!claimed) throw new Error('the test needs a running task')
  await parts.projected()

  let armed = false
  let struck = step === null
  const workState = new Proxy(parts.workState, {
    get(target, name, receiver) {
      const own: unknown = Reflect.get(target, name, receiver)
      if (typeof own !== 'function' || name !== step) return own
      return async (...given: unknown[]) => {
        if (armed) {
          armed = false
          struck = true
          await sleep(FROZEN_MS)
        }
        return own.apply(target, given)
      }
    },
  }) satisfies WorkState
  const { engine, clock, signal, leases } = parts
  const timers = new Timers({ workState, engine, clock, signal, logger: SILENT, graceMs: 0 })
  const { taskId, attempt } = claimed
  const beat = async () =>
    (await leases.heartbeat([{ taskId, attempt, leaseTokenHash: TOKEN_A, progress: null }]))[0]
  await timers.tick()
  t.match(await beat(), { state: 'held' })
  armed = true
  await timers.tick()
  if (step === null) await sleep(FROZEN_MS)
  // The next look may come before the worker, which sends at a third of its lease.
  await timers.tick()
  t.ok(struck, 'it was stopped there')
  t.match(await beat(), { state: 'held' }, 'the worker still holds its task')
  t.equal((await parts.task(taskId)).status, 'PROCESSING')
}
