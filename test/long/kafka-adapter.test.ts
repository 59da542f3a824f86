/** The broker is away for longer than a session, in order and by force, and again and again. */
import t from 'tap'
import { outage } from '../broker/kafka/outages.ts'
import { ownKafkaBroker } from '../support/kafka.ts'

for (const kill of [false, true])
  t.test(`a broker that is ${kill ? 'killed' : 'stopped'} for 40 s comes back`, async t => {
    const server = await ownKafkaBroker(t)
    if (server) await outage(t, server, { awayMs: 40_000, kill })
  })

t.test('a broker that is killed five times comes back each time', async t => {
  const server = await ownKafkaBroker(t)
  if (!server) return
  for (let round = 0; round < 5; round++) await outage(t, server, { awayMs: 1_000, kill: true })
})
