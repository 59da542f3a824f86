/** Handing out: the window, priorities, and dispatchers that are killed. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { tasksTopic } from '../../src/broker/topics.ts'
import { until } from '../api/fixture.ts'
import { dispatcherKilledAfterSend, dispatcherKilledBeforeSend } from './kafka-drills.ts'
import { endedRight } from './kafka-right.ts'
import { PATIENCE_MS, Stage } from './kafka-stage.ts'
import { nothing, RawWorker } from './kafka-worker.ts'

const WINDOW = 50
const WAITING = 1_000

const stage = await Stage.open(t, ['api', 'projector', 'timers'], {
  window: { maxOutstanding: WINDOW, partitions: 1 },
  before: { offerHoldMs: 1_000, partitions: 1 },
  after: { offerHoldMs: 3_000, partitions: 1 },
})

if (stage) {
  t.test('a dispatcher is killed between its commit and its send: the tasks are offered again', t =>
    dispatcherKilledBeforeSend(t, stage, 'before'),
  )

  t.test('a dispatcher is killed before the broker has answered it: what comes twice is done once', t =>
    dispatcherKilledAfterSend(t, stage, 'after'),
  )

  t.test(
    '1,000 wait for two dispatchers and two ingests: the window holds, the first in rank go first',
    async t => {
      const dispatchers = [await stage.serve(['dispatcher']), await stage.serve(['dispatcher'])]
      const ingests = [await stage.serve(['ingest']), await stage.serve(['ingest'])]
      const worker = await RawWorker.start(t, stage.broker, 'window', { says: nothing })
      // These fill the window; all that come after them wait where their rank counts.
      const first = await stage.submit('window', WINDOW)
      await until('the window is full', () => worker.tasks.length === WINDOW, PATIENCE_MS)
      const rankOf = new Map<string, number>()
      const ids = await stage.submit('window', WAITING, index => ({ priority: (index * 7) % 10 }))
      ids.forEach((taskId, index) => {
        rankOf.set(taskId, (index * 7) % 10)
      })
      const waiting = async () => {
        const { rows } = await stage.pool.query(
          `SELECT count(*)::int FROM rollcall.ready WHERE type = 'window'`,
        )
        return rows[0].count
      }
      await until('they wait', async () => (await waiting()) === WAITING, PATIENCE_MS)
      await sleep(1_000)
      t.equal(await stage.recordsOf(tasksTopic('window')), WINDOW, 'nothing goes beyond the window')

      let most = 0
      let looks = 0
      const looking = new AbortController()
      const looked = (async () => {
        for (; !looking.signal.aborted; looks++) {
          most = Math.max(most, await stage.outstanding('window'))
          await sleep(10)
        }
      })()
      await worker.sayAll()
      await endedRight(t, stage, new Map([...first, ...ids].map(id => [id, 'SUCCESS in attempt 1'])))
      looking.abort()
      await looked
      t.ok(most > WINDOW / 2 && most <= WINDOW, `at most ${most} were on their way, seen in ${looks} looks`)
      t.equal(worker.tasks.length, WINDOW + WAITING, 'each was sent once')
      const ranks = worker.tasks.slice(WINDOW).map(({ taskId }) => rankOf.get(taskId)!)
      // Two may send at the same time, each a part of one window.
      const early = ranks.filter((rank, place) => ranks.slice(place + WINDOW).some(later => later > rank))
      t.strictSame(early, [], 'none goes before one of higher rank, but by chance within a window')
      await Promise.all([...dispatchers, ...ingests].map(service => service.stop()))
    },
  )
}
