import t from 'tap'
import { start, succeed } from '../domain/specification.ts'
import { differences } from '../support/compare.ts'
import { testServer } from '../support/postgres.ts'
import { ask, openParts, recordingLogger, said, submitTasks, until } from '../support/service-parts.ts'

t.test(
  'S69 the database is restarted in the middle of projecting: it goes on from its checkpoint',
  async t => {
    const server = await testServer(t)
    const { logger, lines } = recordingLogger()
    const parts = await openParts(t, server.url, { logger })
    parts.timers.start()
    const ids = await submitTasks(parts.engine, 2_000)
    parts.projector.start()
    await until('it projects', async () => {
      const [row] = await parts.rows<{ n: number }>('SELECT count(*)::int AS n FROM rollcall.tasks')
      return row!.n > 0
    })
    await server.stop()
    await until('it noticed', () => lines.some(({ msg }) => msg.startsWith('projecting failed')))
    await server.restart()
    for (const command of [start(), succeed()]) {
      const answers = await parts.engine.executeMany(ids.map(id => ask(id, command)))
      t.ok(answers.every(answer => ['accepted', 'repeated'].includes(said(answer))))
    }
    await parts.projected()
    t.strictSame(await differences(parts.pool, parts.log), [])
    t.equal(parts.projector.mode, 'projecting')

    await t.test('and while it is idle', async t => {
      await server.stop()
      await server.restart()
      await submitTasks(parts.engine, 10)
      await parts.projected()
      t.strictSame(await differences(parts.pool, parts.log), [])
    })
  },
)
