import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { type Admin, Kafka, logLevel } from 'kafkajs'
import t, { type Test } from 'tap'
import { processIdentity } from '../../src/runtime/embedded-postgres-owner.ts'
import { kafkaVersion, startKafkaBroker } from '../../src/runtime/kafka-broker/kafka-broker.ts'
import { makeOnce } from '../../src/runtime/kafka-broker/make-once.ts'
import { canStartKafka, ownKafkaBroker, uniqueName } from '../support/kafka.ts'
import { until } from './embedded-postgres-fixture.ts'

/** Given outright: kafkajs has other defaults where NODE_ENV is `test`. */
const RETRY = { initialRetryTime: 100, maxRetryTime: 1_000, retries: 8, factor: 0.2, multiplier: 2 }
const SOURCE = fileURLToPath(new URL('../../src/runtime/kafka-broker/kafka-broker.ts', import.meta.url))

function client({ brokers }: { brokers: readonly string[] }): Kafka {
  return new Kafka({
    brokers: [...brokers],
    retry: RETRY,
    logLevel: logLevel.NOTHING,
    requestTimeout: 10_000,
  })
}

async function adminOf(t: Test, kafka: Kafka): Promise<Admin> {
  const admin = kafka.admin({ retry: RETRY })
  await admin.connect()
  t.teardown(() => admin.disconnect())
  return admin
}

async function folder(t: Test): Promise<string> {
  const made = await mkdtemp(join(tmpdir(), 'rollcall-kafka-test-'))
  t.teardown(() => rm(made, { recursive: true, force: true, maxRetries: 5 }))
  return made
}

/** The values that a group gets, until there are so many, and what it has committed then. */
async function consume(kafka: Kafka, groupId: string, topic: string, count: number): Promise<string[]> {
  const consumer = kafka.consumer({ groupId, retry: RETRY, allowAutoTopicCreation: false })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const values: string[] = []
  await new Promise<void>((resolve, reject) => {
    const run = consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        values.push(message.value!.toString())
        const offset = String(Number(message.offset) + 1)
        await consumer.commitOffsets([{ topic, partition, offset }])
        if (values.length === count) resolve()
      },
    })
    run.catch(reject)
  })
  await consumer.disconnect()
  return values
}

async function produce(kafka: Kafka, topic: string, values: string[]): Promise<void> {
  const producer = kafka.producer({ retry: RETRY, allowAutoTopicCreation: false })
  await producer.connect()
  await producer.send({ topic, acks: -1, messages: values.map(value => ({ key: 'key', value })) })
  await producer.disconnect()
}

t.test('topics, records and the place of a group outlive a restart and a kill', async t => {
  const broker = await ownKafkaBroker(t)
  if (!broker) return
  const kafka = client(broker)
  const admin = await adminOf(t, kafka)
  const [topic, group] = [uniqueName('topic'), uniqueName('group')]

  await t.rejects(produce(kafka, uniqueName('never-made'), ['x']), 'no topic is made by the way')
  t.ok(await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] }))
  t.notOk(await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] }))
  const described = await admin.fetchTopicMetadata({ topics: [topic] })
  t.equal(described.topics[0]?.partitions.length, 2)

  await produce(kafka, topic, ['a', 'b', 'c'])
  t.same(await consume(kafka, group, topic, 3), ['a', 'b', 'c'])

  for (const [how, end] of Object.entries({ stopped: broker.stop, killed: broker.kill })) {
    const { pid, brokers } = broker
    await end()
    t.equal(await processIdentity(pid), undefined, `${how}, it is gone`)
    await broker.restart()
    t.not(broker.pid, pid)
    t.equal(broker.brokers, brokers, 'the address stays')
    await produce(kafka, topic, [how])
    t.same(await consume(kafka, group, topic, 1), [how], 'the group goes on where it was')
  }

  await admin.deleteTopics({ topics: [topic] })
  t.notOk((await admin.listTopics()).includes(topic))
})

t.test('stopping twice is stopping once, and a stop during a restart ends what it starts', async t => {
  const broker = await ownKafkaBroker(t)
  if (!broker) return
  await Promise.all([broker.stop(), broker.stop()])
  await broker.stop()
  t.same(await broker.exited, { code: 143, signal: null }, 'in order: Java ended by itself')
  await Promise.all([broker.restart(), broker.stop()])
  t.equal(await processIdentity(broker.pid), undefined)
})

t.test('a port that is taken is named, and so is a folder that is in use', async t => {
  const broker = await ownKafkaBroker(t)
  if (!broker) return
  const dataDir = await folder(t)
  await t.rejects(startKafkaBroker({ dataDir, port: broker.port }), {
    code: 'port_in_use',
    message: new RegExp(`Port ${broker.port} `),
  })
  // Whoever takes the port while the broker is down.
  await broker.stop()
  const taker = createServer().listen(broker.port, '127.0.0.1')
  await once(taker, 'listening')
  await t.rejects(broker.restart(), { code: 'port_in_use' })
  taker.close()
  await broker.restart()

  const first = await startKafkaBroker({ dataDir })
  t.teardown(() => first.stop())
  await t.rejects(startKafkaBroker({ dataDir }), {
    code: 'data_dir_in_use',
    message: /in use by this process/,
  })
})

t.test('a broker that cannot start says why, in the words of its log', async t => {
  if (!(await canStartKafka(t))) return
  const dataDir = await folder(t)
  const first = await startKafkaBroker({ dataDir })
  await first.stop()
  await writeFile(join(dataDir, 'kafka', 'data', 'meta.properties'), 'version=1\nnode.id=7\ncluster.id=x\n')
  await t.rejects(first.restart(), {
    code: 'start_failed',
    message: /ended with code 1\..+said last:.+node\.id|node id/s,
  })
  t.equal(await processIdentity(first.pid), undefined, 'nothing is left running')
})

t.test('what is missing is named', async t => {
  const dataDir = await folder(t)
  const programs = await folder(t)
  const program = async (name: string, lines: string): Promise<void> => {
    await writeFile(join(programs, name), `#!/bin/sh\n${lines}\n`)
    await chmod(join(programs, name), 0o755)
  }
  const attempt = async (path: string): Promise<string> => {
    const owner = await startOwner(t, dataDir, { PATH: path, XDG_CACHE_HOME: join(dataDir, 'cache') })
    const { code, message } = await owner.answer
    return `${code}: ${message}`
  }
  // The kernel's own path for programs is added by our code, and this machine's Java may be there: so it is hidden
  // behind one of ours, where the path has to lead first.
  await program('java', 'exit 127')
  t.match(
    await attempt(programs),
    /^java_missing: The command java is of no use .+Install a Java of version 17/,
  )
  await program('java', 'echo openjdk version \\"11.0.2\\" >&2')
  t.match(await attempt(programs), /^java_missing: .+11\.0\.2.+version 17/)
  await program('java', 'echo openjdk version \\"21.0.2\\" >&2')
  t.match(await attempt(programs), /^maven_missing: The command mvn cannot be run/)
  await program('mvn', 'echo "[ERROR] no such repository"; exit 1')
  t.match(await attempt(programs), /^jars_missing: .+code 1.+no such repository/s)
  t.same(await readdir(join(dataDir, 'cache', 'rollcall')), [], 'no half cache is left')
})

t.test('a broker ends with the process that started it, however that ended', async t => {
  if (!(await canStartKafka(t))) return
  const dataDir = await folder(t)
  const owner = await startOwner(t, dataDir)
  const { pid } = await owner.answer
  t.ok(pid && (await processIdentity(pid)))
  owner.process.kill('SIGKILL')
  await until('the guard has ended the broker', async () => (await processIdentity(pid!)) === undefined)
})

t.test('a broker that outlived its owner and its guard is stopped by the next start', async t => {
  if (!(await canStartKafka(t))) return
  const dataDir = await folder(t)
  const owner = await startOwner(t, dataDir)
  const { pid } = await owner.answer
  const guard = await guardOf(pid!)
  process.kill(guard, 'SIGKILL')
  owner.process.kill('SIGKILL')
  await until('the owner is gone', async () => (await processIdentity(owner.process.pid!)) === undefined)
  t.ok(await processIdentity(pid!), 'the broker is alone')
  const next = await startKafkaBroker({ dataDir })
  t.teardown(() => next.stop())
  t.equal(await processIdentity(pid!), undefined)
})

t.test('of many that want a folder one makes it, and what a killed one left is removed', async t => {
  const parent = await folder(t)
  await mkdir(join(parent, 'wanted.making.999999.gone', 'half'), { recursive: true })
  let made = 0
  const make = async (unfinished: string): Promise<void> => {
    made++
    await writeFile(join(unfinished, 'whole'), '')
  }
  await Promise.all([1, 2, 3].map(() => makeOnce(join(parent, 'wanted'), make, 10_000)))
  t.equal(made, 1)
  t.same(await readdir(parent), ['wanted'])
  t.same(await readdir(join(parent, 'wanted')), ['whole'])

  const fails = makeOnce(join(parent, 'other'), () => Promise.reject(new Error('no space')), 10_000)
  await t.rejects(fails, { message: 'no space' })
  t.same(await readdir(parent), ['wanted'], 'what failed leaves nothing')

  // Another live process is at it: this one waits, and says for whom.
  const other = `late.making.1.${await processIdentity(1)}`
  await mkdir(join(parent, other))
  await t.rejects(makeOnce(join(parent, 'late'), make, 300), { message: /Process 1 has been making/ })
})

t.test('it is the version of docker-compose.yml', async t => {
  const compose = await readFile(fileURLToPath(new URL('../../docker-compose.yml', import.meta.url)), 'utf8')
  t.match(compose, `image: apache/kafka:${await kafkaVersion()}\n`)
})

interface Owner {
  process: ChildProcess
  answer: Promise<{ pid?: number; code?: string; message?: string }>
}

/** Another process that starts a broker and answers with one line. */
async function startOwner(t: Test, dataDir: string, env: Record<string, string> = {}): Promise<Owner> {
  const script = join(await folder(t), 'owner.mts')
  await writeFile(
    script,
    `const { startKafkaBroker } = await import(${JSON.stringify(SOURCE)})
     const said = await startKafkaBroker({ dataDir: ${JSON.stringify(dataDir)} }).then(
       ({ pid }) => ({ pid }),
       ({ code, message }) => ({ code, message }),
     )
     console.log(JSON.stringify(said))
     if (said.code) process.exit()
    `,
  )
  const child = spawn(process.execPath, ['--import=tsx', script], {
    env: { ...process.env, JAVA_HOME: '', ...env },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  t.teardown(() => child.kill('SIGKILL'))
  const answer = once(createInterface(child.stdout), 'line').then(([line]) => JSON.parse(line))
  return { process: child, answer }
}

/** The shell that stands by for a broker. */
async function guardOf(pid: number): Promise<number> {
  for (const name of await readdir('/proc')) {
    const line = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '')
    if (line.startsWith('/bin/sh\0') && line.endsWith(`\0guard\0${pid}\0`)) return Number(name)
  }
  throw new Error(`no guard of process ${pid} was found`)
}
