/** Brokers that go away, and networks that do. */
import t from 'tap'
import { steadyPort } from '../../../src/runtime/port.ts'
import { ownKafkaBroker, uniqueName } from '../../support/kafka.ts'
import { startTcpProxy } from '../../support/tcp-proxy.ts'
import { open, read, record, until } from './fixture.ts'
import { load, outage } from './outages.ts'

t.test('a broker of our own, and what becomes of it', async t => {
  // Clients that come by the proxy stay with it: it is the address that the broker names to them.
  const port = await steadyPort()
  const proxy = await startTcpProxy(t, port)
  const server = await ownKafkaBroker(t, {
    listeners: `PROXIED://127.0.0.1:${port}`,
    'advertised.listeners': `PROXIED://127.0.0.1:${proxy.port}`,
    'listener.security.protocol.map': 'PROXIED:PLAINTEXT',
  })
  if (!server) return

  await t.test(
    'K3 K6: it stops under load and comes back: each record comes, and the health says so',
    async t => {
      await outage(t, server, { awayMs: 2_000 })
    },
  )

  await t.test(
    'K13: a network that falls silent is an unknown outcome in its time, and work goes on',
    async t => {
      const { broker } = open(t, { brokers: [`127.0.0.1:${proxy.port}`] }, { sendMs: 1_500 })
      const topic = uniqueName('silent')
      await broker.ensureTopics([{ name: topic, partitions: 2, compacted: false }])
      const reader = read(broker, [topic])
      await until('it is well', () => reader.consumer.health().ok)
      await broker.send(topic, [record('before')])

      proxy.hold()
      const since = performance.now()
      await t.rejects(broker.send(topic, [record('held')]), { code: 'broker_unavailable' })
      t.ok(performance.now() - since < 3_000)
      await until('the health says so', () => !reader.consumer.health().ok)
      proxy.restore()
      const loading = load(t, broker, topic)
      await until('it flows again', () => reader.got.length > 50, 20_000)
      await until('it is well', () => reader.consumer.health().ok)

      // The broker has them, and nobody is told.
      proxy.loseAnswers(3)
      await until('the answers were lost', () => loading.failed > 0 || loading.sent > 200)
      proxy.cut()
      const then = loading.sent
      await until('sends arrive again', () => loading.sent > then + 20, 20_000)
      await loading.end()
      const keys = () => reader.keys().filter(key => key.startsWith('k'))
      await until('each came', () => new Set(keys()).size === loading.sent)
      t.ok(reader.keys().includes('before'))
    },
  )
})
