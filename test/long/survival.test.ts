/** Nightly: services that are stopped again and again, at any moment and at the worst one. */
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import t from 'tap'
import { AWAY_MS, databaseOn, LEASE_MS, type Stage, survive } from '../faults/survival/drill.ts'
import { testServer } from '../support/postgres.ts'

const STOPS = 20
const LIMIT_MS = 120_000
t.setTimeout(STOPS * LIMIT_MS)
t.jobs = 3
/** An object for each: tap writes into it, and tests that share one are shown with the assertions of another. */
const parallel = () => ({ buffered: true, timeout: LIMIT_MS })
const shared = await testServer(t)

async function stopForThreeLeases({ service, killOne }: Stage, meanwhile = async () => {}): Promise<void> {
  service.child?.kill('SIGSTOP')
  await meanwhile()
  killOne()
  await sleep(AWAY_MS)
  service.child?.kill('SIGCONT')
}

for (let stop = 1; stop <= STOPS; stop++)
  t.test(`heart-beating tasks survive a service stopped at any moment (${stop})`, parallel(), async t =>
    survive(t, await databaseOn(shared), {
      silentMs: 2 * LEASE_MS,
      strike: stage => stopForThreeLeases(stage),
    }),
  )

for (const unread of [true, false])
  t.test(
    `heart-beating tasks survive a service stopped ${unread ? 'when its timers have just found no gap' : 'a moment later'}`,
    parallel(),
    async t =>
      survive(t, await databaseOn(shared), {
        silentMs: 2 * LEASE_MS,
        strike: async stage => {
          const client = new pg.Client(stage.databaseUrl)
          await client.connect()
          // Their look waits for this row; they are stopped before they can read the answer.
          await client.query('BEGIN')
          await client.query('SELECT FROM rollcall.timer_ticks FOR UPDATE')
          await sleep(600)
          if (!unread) {
            await client.query('COMMIT')
            await sleep(350)
          }
          await stopForThreeLeases(stage, async () => {
            if (unread) await client.query('COMMIT')
            await client.end()
          })
        },
      }),
  )
