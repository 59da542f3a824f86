/** What workers hold survives whatever keeps their heartbeats from being heard, and what the dead held does not. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { until } from '../api/fixture.ts'
import { execute, testServer } from '../support/postgres.ts'
import { AWAY_MS, databaseOn, LEASE_MS, type Stage, survive } from './survival/drill.ts'
import { freezeAt, STEPS } from './survival/frozen-look.ts'

const LIMIT_MS = 120_000
t.setTimeout(4 * LIMIT_MS)
// Each waits most of its time, on a service of its own.
t.jobs = 4
/** An object for each: tap writes into it, and tests that share one are shown with the assertions of another. */
const parallel = () => ({ buffered: true, timeout: LIMIT_MS })
const shared = await testServer(t)

/** Whoever has no heartbeat heard in this time has lost a lease, unless something gives him another. */
const HARD_MS = 2 * LEASE_MS

/** All tables of the read model and the work state, as docs/operations.md has them truncated. */
async function forgetAll({ databaseUrl }: Stage): Promise<void> {
  const tables = await execute(
    databaseUrl,
    `SELECT string_agg(format('rollcall.%I', tablename), ', ') AS names FROM pg_tables
      WHERE schemaname = 'rollcall' AND tablename <> 'migrations'`,
  )
  await execute(databaseUrl, `TRUNCATE ${tables[0]!.names}`)
}

const caughtUp = ({ api }: Stage) =>
  until('the read model is there again', async () => {
    const { status, body } = await api.get<{ lagSeconds: number }>('/v1/tasks?limit=1')
    return status === 200 && body.lagSeconds === 0
  })

t.test('heart-beating tasks survive a read model that is rebuilt from nothing', parallel(), async t =>
  survive(t, await databaseOn(shared), {
    silentMs: 0,
    strike: async stage => {
      t.comment('under the service while it runs')
      await forgetAll(stage)
      stage.killOne()
      await stage.api.submit({ type: 'survival.other' })
      await caughtUp(stage)
      t.comment('with the service stopped, as docs/operations.md says')
      await stage.service.end('SIGTERM')
      await forgetAll(stage)
      await stage.service.start()
      await caughtUp(stage)
    },
  }),
)

t.test('heart-beating tasks survive a Postgres outage of three leases', parallel(), async t => {
  const postgres = await testServer(t)
  await survive(t, postgres.url, {
    silentMs: HARD_MS,
    strike: async stage => {
      await postgres.stop()
      stage.killOne()
      await sleep(AWAY_MS)
      await postgres.restart()
    },
  })
})

t.test('heart-beating tasks survive a service stopped for three leases', parallel(), async t =>
  survive(t, await databaseOn(shared), {
    silentMs: HARD_MS,
    strike: async ({ service, killOne }) => {
      service.child?.kill('SIGSTOP')
      killOne()
      await sleep(AWAY_MS)
      service.child?.kill('SIGCONT')
    },
  }),
)

t.test(
  'heart-beating tasks survive a service killed and started again after three leases',
  parallel(),
  async t =>
    survive(t, await databaseOn(shared), {
      silentMs: HARD_MS,
      strike: async ({ service, killOne }) => {
        await service.end('SIGKILL')
        killOne()
        await sleep(AWAY_MS)
        await service.start()
      },
    }),
)

for (const step of STEPS)
  t.test(
    `a lease survives a process stopped ${step ? `in a look of its timers, at ${step}` : 'between two looks'}`,
    parallel(),
    t => freezeAt(t, step),
  )
