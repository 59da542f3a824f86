/** `rollcall dev` with Kafka: a broker of its own that lives and ends with it, or one that runs already. */
import { existsSync } from 'node:fs'
import { mkdir, readFile, symlink } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { openKafkaBroker } from '../../src/broker/kafka/kafka-broker.ts'
import { tasksTopic } from '../../src/broker/topics.ts'
import { run } from '../../src/runtime/embedded-postgres-account.ts'
import { isFree, steadyPort } from '../../src/runtime/port.ts'
import { createClient } from '../../src/sdk/client.ts'
import { canStartKafka, uniqueName } from '../support/kafka.ts'
import { SILENT } from '../support/service-parts.ts'
import {
  eventually,
  isAlive,
  postgresPid,
  rollcall,
  startCommand,
  startCommands,
  startDev,
  temporaryFolder,
} from './fixture.ts'
import { brokerPid } from './kafka-fixture.ts'

const STOP_MS = 5_000

/** Waits until a type's topic, read from its beginning, has offered these tasks. */
async function untilOffered(broker: string, type: string, ids: readonly string[]): Promise<void> {
  const kafka = openKafkaBroker({ brokers: [broker], clientId: 'test', logger: SILENT })
  const missing = new Set(ids)
  const consumer = kafka.consume({
    group: uniqueName('group'),
    topics: [tasksTopic(type)],
    onBatch: async records => {
      for (const { key } of records) missing.delete(String(key))
    },
  })
  try {
    await eventually('the tasks are offered', () => missing.size === 0, 30_000)
  } finally {
    await consumer.stop()
    await kafka.close()
  }
}

t.test('a broker beside the database: kept, started again, recovered, and ended with the rest', async t => {
  if (!(await canStartKafka(t))) return
  const dataDir = await temporaryFolder(t)
  const port = await steadyPort()
  const broker = `127.0.0.1:${port}`
  const args = ['--kafka', '--kafka-port', String(port), '--kafka-types', 'image.generate,dev.kafka']
  const since = performance.now()
  const dev = await startDev(t, { dataDir, args })
  t.comment(`ready from nothing after ${Math.round(performance.now() - since)} ms`)
  t.match(JSON.parse(dev.stdout()), { kafkaBrokers: [broker], kafkaTypes: ['image.generate', 'dev.kafka'] })
  const client = createClient({ url: dev.url })
  const submit = async () => (await client.submit({ type: 'dev.kafka' }, { timeoutMs: 30_000 })).taskId
  const first = await submit()
  await untilOffered(broker, 'dev.kafka', [first])

  await t.test('another uses the broker, leaves it alone, and says what to do about types', async t => {
    const other = startCommand([
      ...['dev', '--port', '0', '--data-dir', await temporaryFolder(t), '--kafka-brokers', broker],
    ])
    t.teardown(() => other.child.kill('SIGKILL'))
    await other.until(new RegExp(`Kafka at ${broker},`))
    await other.until(/No type of task goes through Kafka yet: start it with --kafka-types/, 'stderr')
    other.child.kill('SIGTERM')
    t.match(await other.ended, { code: 0 })
    t.notOk(await isFree(port))
  })

  const killed = await brokerPid(dataDir)
  process.kill(killed, 'SIGKILL')
  const second = await submit()
  await eventually('another broker runs', async () => (await brokerPid(dataDir)) !== killed, 30_000)
  await untilOffered(broker, 'dev.kafka', [first, second])
  t.match(await readFile(join(dataDir, 'rollcall.log'), 'utf8'), /the Kafka broker ended by itself/)

  const orphans = [await brokerPid(dataDir), await postgresPid(dataDir)]
  dev.child.kill('SIGKILL')
  await dev.ended
  const again = startCommand(['dev', '--port', '0', '--data-dir', dataDir, ...args])
  t.teardown(() => again.child.kill('SIGKILL'))
  await again.until(/^rollcall is ready at \S+ \(data in .*, Kafka at \S+, stop with Ctrl-C\)$/m)
  await eventually('those of before are gone', () => !orphans.some(isAlive))
  await untilOffered(broker, 'dev.kafka', [first, second])
  const processes = [await brokerPid(dataDir), await postgresPid(dataDir)]
  const asked = performance.now()
  again.child.kill('SIGTERM')
  t.match(await again.ended, { code: 0, stderr: '' })
  const stopMs = performance.now() - asked
  t.ok(stopMs < STOP_MS, `ended after ${Math.round(stopMs)} ms`)
  t.notOk(processes.some(isAlive), 'no process is left')
  t.ok(await isFree(port), 'its port is free')
})

t.test('without Java or Maven it says what is missing, and nothing is left', async t => {
  const folder = await temporaryFolder(t)
  const [nothing, onlyJava, dataDir] = ['nothing', 'only-java', 'data'].map(name => join(folder, name))
  for (const path of [nothing!, onlyJava!]) await mkdir(path)
  const dev = (env: Record<string, string | undefined>) =>
    rollcall(['dev', '--port', '0', '--data-dir', dataDir!, '--kafka', '--kafka-port', '0'], {
      env: { JAVA_HOME: undefined, XDG_CACHE_HOME: join(folder, 'cache'), ...env },
    })
  const withoutJava = await dev({ JAVA_HOME: nothing! })
  t.match(withoutJava, { code: 1, stdout: '' })
  t.match(
    withoutJava.stderr,
    /^error: .*java, which JAVA_HOME names, cannot be run\. Install.*--kafka-brokers.*\(java_missing\)\n$/,
  )
  t.notOk(existsSync(dataDir!), 'nothing was begun')

  const java = (await run('/bin/sh', ['-c', 'command -v java']).catch(() => null))?.output.trim()
  if (!java) return t.comment('NOT RUN: without Maven, since there is no Java')
  await symlink(java, join(onlyJava!, 'java'))
  const withoutMaven = await dev({ PATH: onlyJava! })
  t.match(withoutMaven, { code: 1, stdout: '' })
  t.match(withoutMaven.stderr, /^error: The command mvn cannot be run.*Install.*\(maven_missing\)\n$/)
  t.notOk(existsSync(dataDir!))
})

t.test('options that do not go together, and a port that is taken, are named', async t => {
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise(resolve => server.once('listening', resolve))
  t.teardown(() => server.close())
  const { port } = server.address() as { port: number }
  const dataDir = join(await temporaryFolder(t), 'data')
  const ask = startCommands(t, { ROLLCALL_DATA_DIR: dataDir })
  const cases: [args: string[], stderr: RegExp][] = [
    [['--kafka', '--kafka-brokers', '127.0.0.1:9092'], /choose one/],
    [['--kafka-port', '9092'], /add --kafka/],
    [['--kafka-types', 'a'], /--kafka-types needs a Kafka/],
    [['--kafka-brokers', 'nowhere'], /kafkaBrokers.*host:port|host:port.*kafkaBrokers/s],
    [['--kafka', '--kafka-types', 'Image'], /"Image" is no task type/],
    [['--kafka', '--kafka-types', 'a.b,a_b'], /a\.b and a_b/],
    [['--kafka', '--kafka-port', String(port)], new RegExp(`Port ${port} .* in use.*--kafka-port`)],
  ]
  for (const [args, stderr] of cases) {
    const ended = await ask('dev', '--port', '0', ...args)
    t.match(ended, { code: 2, stdout: '' }, args.join(' '))
    t.match(ended.stderr, stderr, args.join(' '))
  }
  t.notOk(existsSync(dataDir))
})
