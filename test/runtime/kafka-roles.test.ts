/** The roles of Kafka in a service: what is submitted over HTTP comes out at the broker, and /readyz says how they are. */
import pino from 'pino'
import t, { type Test } from 'tap'
import { openKafkaBroker } from '../../src/broker/kafka/kafka-broker.ts'
import { tasksTopic } from '../../src/broker/topics.ts'
import { fileConfigSchema, KAFKA_ROLES, type Role, serviceConfigSchema } from '../../src/runtime/config.ts'
import { type Service, startService } from '../../src/runtime/service.ts'
import { createClient } from '../../src/sdk/client.ts'
import { freePort } from '../cli/fixture.ts'
import { kafkaBroker, uniqueName } from '../support/kafka.ts'
import { testDatabase } from '../support/postgres.ts'
import { SILENT, until } from '../support/service-parts.ts'

async function serve(
  t: Test,
  kafkaBrokers: readonly string[],
  type: string,
  roles?: Role[],
): Promise<Service> {
  const { url: databaseUrl } = await testDatabase(t)
  const service = await startService({
    ...serviceConfigSchema.parse({ databaseUrl, port: 0, kafkaBrokers, roles }),
    file: fileConfigSchema.parse({ types: { [type]: { kafka: {} } } }),
    logger: pino({ level: 'silent' }),
    requireDurable: false,
  })
  t.teardown(() => service.stop())
  return service
}

interface Ready {
  status: string
  checks: { name: string; ok: boolean; needed?: boolean; reason: string | null }[]
}
const readyOf = async ({ url }: Service): Promise<Ready> =>
  (await fetch(`${url}/readyz`)).json() as Promise<Ready>
const checkOf = async (service: Service, name: string) =>
  (await readyOf(service)).checks.find(check => check.name === name)

t.test('what is submitted comes out at the broker, and its roles are well', async t => {
  const kafka = await kafkaBroker(t)
  if (!kafka) return
  const type = uniqueName('type')
  const service = await serve(t, kafka.brokers, type)
  const { taskId } = await createClient({ url: service.url! }).submit({ type, payload: { of: 'a test' } })
  const broker = openKafkaBroker({ brokers: kafka.brokers, clientId: 'test', logger: SILENT })
  t.teardown(() => broker.close())
  const keys: string[] = []
  await broker.ensureTopics([{ name: tasksTopic(type), partitions: 4, compacted: false }])
  const consumer = broker.consume({
    group: uniqueName('group'),
    topics: [tasksTopic(type)],
    onBatch: async records => void keys.push(...records.map(({ key }) => String(key))),
  })
  t.teardown(() => consumer.stop())
  await until('it comes out', () => keys.includes(taskId))
  await until('ingest is well', async () => (await checkOf(service, 'ingest'))?.ok === true)
  t.match(await checkOf(service, 'dispatcher'), { ok: true, needed: false })
  t.match(await checkOf(service, 'publisher'), { ok: true, needed: false })
  await until('its status is published', async () =>
    /^rollcall_status_published_total 1$/m.test(await (await fetch(`${service.url}/metrics`)).text()),
  )
  const metrics = await (await fetch(`${service.url}/metrics`)).text()
  t.match(metrics, `rollcall_dispatched_total{type="${type}"} 1`)
  t.match(metrics, `rollcall_dispatch_outstanding{type="${type}"} 1`)
})

t.test('without its broker an API is ready, and a process of the roles alone is not', async t => {
  const away = [`127.0.0.1:${await freePort()}`]
  const all = await serve(t, away, 'a')
  const alone = await serve(t, away, 'a', [...KAFKA_ROLES])
  for (const name of KAFKA_ROLES)
    await until(`${name} says so`, async () => (await checkOf(all, name))?.ok === false)
  t.equal((await readyOf(all)).status, 'ok')
  t.ok((await createClient({ url: all.url! }).submit({ type: 'a' })).taskId, 'tasks are taken')
  t.equal((await readyOf(alone)).status, 'unavailable')
  const since = performance.now()
  await Promise.all([all.stop(), alone.stop()])
  t.ok(performance.now() - since < 15_000, `stopped in ${Math.round(performance.now() - since)} ms`)
})
