/** Workers fed by Kafka while there is no broker: nothing is lost, and stopping has an end. */
import t from 'tap'
import type { HandlerContext, Task } from '../../src/sdk/worker.ts'
import { ownKafkaBroker } from '../support/kafka.ts'
import { eventTypes, finished, gate, until } from './fixture.ts'
import { startKafkaFixture } from './kafka-fixture.ts'

const server = await ownKafkaBroker(t)
await server?.stop()
const fixture = server && (await startKafkaFixture(t, 1, server))

if (server && fixture)
  t.test(
    'a worker waits for its broker, before it starts, while it works, and not when it stops',
    async t => {
      const { client, aType, worker, log } = fixture
      const type = aType()
      const first = gate()
      const last = gate()
      const started = { first: gate(), last: gate() }
      const made = worker(t, {
        [type]: async (task: Task<'first' | 'last'>, { step }: HandlerContext) => {
          started[task.payload].open()
          await (task.payload === 'first' ? first : last).opened
          await step('UPLOADING')
          return 'done'
        },
      })
      const submitted = await client.submit({ type, payload: 'first' })
      await until('it waits', () => log.some(line => line.level === 'warn' && /broker/.test(line.message)))
      t.equal((await client.get(submitted.taskId)).status, 'PENDING')

      await server.restart()
      await started.first.opened
      await server.stop()
      first.open()
      await until('it says so', () => log.some(line => /^reporting failed/.test(line.message)))
      t.match(made, { running: 1 }, 'the step is not stored')

      await server.restart()
      t.match(await finished(client, submitted), { status: 'SUCCESS', result: 'done', attempt: 1 })
      t.strictSame(await eventTypes(client, submitted.taskId), [
        'TaskSubmitted',
        'TaskStarted',
        'TaskStepEntered',
        'TaskSucceeded',
      ])
      t.match(made.counts, { claimed: 1, refused: 0 })

      await client.submit({ type, payload: 'last' })
      await started.last.opened
      await server.stop()
      const since = performance.now()
      await made.stop({ drainMs: 0 })
      t.ok(performance.now() - since < 20_000, `stopped in ${Math.round(performance.now() - since)} ms`)
      t.match(made.counts, { succeeded: 1, undelivered: 1 })
      t.match(
        log.find(line => line.level === 'error'),
        { undelivered: 1 },
      )
    },
  )
