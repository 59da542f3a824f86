/** Any program as a worker of tasks that come through Kafka. */
import pino from 'pino'
import t, { type Test } from 'tap'
import { fileConfigSchema, serviceConfigSchema } from '../../src/runtime/config.ts'
import { startService } from '../../src/runtime/service.ts'
import { createClient } from '../../src/sdk/client.ts'
import { kafkaBroker, uniqueName } from '../support/kafka.ts'
import { testDatabase } from '../support/postgres.ts'
import { rollcall, startCommand } from './fixture.ts'

const TASKS = 12

async function serve(t: Test, kafkaBrokers: readonly string[], types: readonly string[]): Promise<string> {
  const { url: databaseUrl } = await testDatabase(t)
  const entries = types.map(type => [type, { kafka: {}, retry: { maxAttempts: 1 } }])
  const service = await startService({
    ...serviceConfigSchema.parse({ databaseUrl, port: 0, kafkaBrokers }),
    file: fileConfigSchema.parse({ types: Object.fromEntries(entries) }),
    logger: pino({ level: 'silent' }),
    requireDurable: false,
  })
  t.teardown(() => service.stop())
  return service.url!
}

t.test('a program works on what comes through Kafka, confirmed by the service or by nobody', async t => {
  const kafka = await kafkaBroker(t)
  if (!kafka) return
  const ways = [
    { type: uniqueName('api'), confirm: (url: string) => ['--url', url] },
    // No service is asked: at this address there is none.
    { type: uniqueName('none'), confirm: () => ['--url', 'http://127.0.0.1:1', '--confirm', 'none'] },
  ]
  const types = ways.map(({ type }) => type)
  const url = await serve(t, kafka.brokers, types)
  const client = createClient({ url })
  await Promise.all(
    ways.map(async ({ type, confirm }) => {
      const args = ['worker', '--type', type, '--exec', 'cat', '--concurrency', '4', '--name', type, '--json']
      const worker = startCommand([...args, '--kafka-brokers', kafka.brokers.join(','), ...confirm(url)])
      t.teardown(() => worker.child.kill('SIGKILL'))
      const payloads = Array.from({ length: TASKS }, (_, index) => ({ index, text: 'ünï "quoted"\n' }))
      const results = await client.submitBatch(payloads.map(payload => ({ type, payload })))
      const ids = results.map(result => (result.kind === 'refused' ? '' : result.taskId))
      for (const [index, id] of ids.entries())
        t.match(await client.waitFor(id, { timeoutMs: 60_000 }), {
          status: 'SUCCESS',
          worker: type,
          result: payloads[index]!,
        })
      worker.child.kill('SIGTERM')
      const { code, stdout } = await worker.ended
      t.equal(code, 0)
      const ran = stdout
        .trim()
        .split('\n')
        .map(line => JSON.parse(line))
      t.same(
        ran.map(({ outcome }) => outcome),
        Array(TASKS).fill('succeeded'),
      )
    }),
  )
})

t.test('what does not go together, and a broker that is no address, are refused', async t => {
  const worker = ['worker', '--type', 'a', '--exec', 'cat']
  const cases: [args: string[], stderr: RegExp][] = [
    [['--confirm', 'none'], /add --kafka-brokers/],
    [['--kafka-brokers', 'nowhere'], /host:port/],
    [['--kafka-brokers', 'a:1', '--confirm', 'both'], /api, none/],
  ]
  for (const [args, stderr] of cases) {
    const ended = await rollcall([...worker, ...args])
    t.match(ended, { code: 2, stdout: '', stderr }, args.join(' '))
  }
})
