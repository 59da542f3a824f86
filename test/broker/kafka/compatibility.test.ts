import { once } from 'node:events'
import { createRequire } from 'node:module'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { assertCompatible, CLIENT_APIS } from '../../../src/broker/kafka/compatibility.ts'
import { Contact } from '../../../src/broker/kafka/contact.ts'
import { SILENT } from '../../support/service-parts.ts'
import { open, read, record, until } from './fixture.ts'

type Ranges = [key: number, lowest: number, highest: number][]
const FITTING: Ranges = Object.values(CLIENT_APIS).map(({ key, highest }) => [key, 0, highest])

/** Something that listens, does this with each connection, and ends with the test. */
async function listener(t: Test, onConnection: (socket: Socket) => void): Promise<string> {
  const sockets = new Set<Socket>()
  const server = createServer(socket => {
    socket.on('error', () => {})
    sockets.add(socket)
    onConnection(socket)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return `127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** What a broker answers to the question for its versions. */
function answer(ranges: Ranges): Buffer {
  const bytes = Buffer.alloc(14 + ranges.length * 6)
  bytes.writeInt32BE(bytes.length - 4, 0)
  bytes.writeInt32BE(1, 4)
  bytes.writeInt32BE(ranges.length, 10)
  for (const [index, range] of ranges.entries())
    for (const [field, value] of range.entries()) bytes.writeInt16BE(value, 14 + index * 6 + field * 2)
  return bytes
}

t.test('K1: the table of versions is that of the client that is installed', async t => {
  const inside = createRequire(createRequire(import.meta.url).resolve('kafkajs'))
  t.equal(inside('./package.json').version, '2.2.4')
  const keys: Record<string, number> = inside('./src/protocol/requests/apiKeys')
  const { requests } = inside('./src/protocol/requests') as {
    requests: Record<string, { versions: string[] }>
  }
  for (const [name, { key, highest }] of Object.entries(CLIENT_APIS)) {
    const theirs = name === 'FindCoordinator' ? 'GroupCoordinator' : name
    t.equal(keys[theirs], key, `key of ${name}`)
    t.equal(Math.max(...requests[theirs]!.versions.map(Number)), highest, `highest version of ${name}`)
  }
})

t.test('K2: an API whose old versions are gone, and one that is missing, are named', async t => {
  const ranges = FITTING.filter(([key]) => key !== CLIENT_APIS.DeleteGroups.key).map(
    ([key, lowest, highest]): Ranges[number] =>
      key === CLIENT_APIS.DeleteTopics.key ? [key, 2, 6] : [key, lowest, highest],
  )
  // In two pieces, as a network may bring it.
  const bytes = answer(ranges)
  const broker = await listener(t, socket => {
    socket.write(bytes.subarray(0, 3))
    setImmediate(() => socket.write(bytes.subarray(3)))
  })
  await t.rejects(assertCompatible([broker]), {
    code: 'broker_incompatible',
    message: /of DeleteTopics it takes version 2 to 6, and we send 1; it does not know DeleteGroups/,
  })
})

t.test('the first broker that answers decides', async t => {
  const closing = await listener(t, socket => socket.end())
  const fitting = await listener(t, socket => socket.write(answer(FITTING)))
  await assertCompatible([closing, fitting])
  t.pass()
})

t.test(
  'who is silent, closes, is not there or is no broker is told apart from one that does not fit',
  async t => {
    const silent = await listener(t, () => {})
    const closing = await listener(t, socket => socket.end())
    const web = await listener(t, socket => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'))
    const gone = await new Promise<string>(resolve => {
      const server = createServer().listen(0, '127.0.0.1', () => {
        const { port } = server.address() as AddressInfo
        server.close(() => resolve(`127.0.0.1:${port}`))
      })
    })
    const reasons: Record<string, RegExp> = {
      [silent]: /no answer within 200 ms/,
      [closing]: /closed the connection/,
      [web]: /no Kafka broker/,
      [gone]: /ECONNREFUSED/,
    }
    for (const [broker, message] of Object.entries(reasons))
      await t.rejects(assertCompatible([broker], { timeoutMs: 200 }), { code: 'broker_unavailable', message })
    await t.rejects(assertCompatible([]), { code: 'broker_unavailable', message: /No Kafka broker is given/ })
  },
)

t.test(
  'a send whose time is over while the broker is asked once more says why it was not reached before',
  async t => {
    let connections = 0
    const address = await listener(t, socket => {
      if (++connections === 1) socket.end()
    })
    const { broker } = open(t, { brokers: [address] }, { connectMs: 5_000, sendMs: 1_000 })
    await t.rejects(broker.send('any', [record('a')]), {
      code: 'broker_unavailable',
      message: /closed the connection/,
    })
    t.equal(connections, 2)
  },
)

/** As Kafka may be one day: of these it takes no version that we know. */
const RAISED = FITTING.map(([key, lowest, highest]): Ranges[number] =>
  key === CLIENT_APIS.Produce.key ? [key, highest + 1, highest + 9] : [key, lowest, highest],
)
const NAMED = /Produce it takes version 8 to 16, and we send 7/

t.test(
  'K2: a broker that cannot be used is asked once, and named wherever somebody waits for it',
  async t => {
    let connections = 0
    const address = await listener(t, socket => {
      connections++
      socket.on('data', () => socket.write(answer(RAISED)))
    })
    const { broker, lines } = open(t, { brokers: [address] }, { sendMs: 30_000 })
    const reader = read(broker, ['any'])
    const since = performance.now()
    const topics = broker.ensureTopics([{ name: 'any', partitions: 1, compacted: false }])
    await Promise.all(
      [topics, broker.send('any', [record('a')]), broker.send('any', [record('b')])].map(waiting =>
        t.rejects(waiting, { code: 'broker_unavailable', message: NAMED }),
      ),
    )
    t.ok(performance.now() - since < 10_000, 'nobody waits for what will not come')
    await until('the health names it', () => NAMED.test(reader.consumer.health().reason ?? ''))
    await new Promise(resolve => setTimeout(resolve, 500))
    t.equal(connections, 1, 'it is not tried again in silence')
    const told = lines.map(line => JSON.parse(line)).filter(({ level }) => level >= 50)
    t.equal(told.length, 1)
    t.match(told[0].reason, NAMED)
  },
)

t.test('K2: one that was replaced is found, and so is one that no longer fits', async t => {
  let ranges = RAISED
  const address = await listener(t, socket => {
    socket.on('data', () => socket.write(answer(ranges)))
  })
  const contact = new Contact({
    brokers: [address],
    tls: false,
    timeoutMs: 1_000,
    againMs: 100,
    logger: SILENT,
  })
  await t.rejects(contact.ask(), { message: NAMED })
  ranges = FITTING
  await t.rejects(contact.ask(), { message: NAMED }, 'not asked at once')
  await until('it is asked again', () =>
    contact.ask().then(
      () => true,
      () => false,
    ),
  )
  ranges = RAISED
  await contact.ask()
  t.pass('an answer stands until there is a reason to doubt it')
  contact.forget()
  await t.rejects(contact.ask(), { message: NAMED })
})

t.test('one that is not there yet is waited for in its time', async t => {
  let there = false
  const address = await listener(t, socket => {
    if (there) socket.on('data', () => socket.write(answer(FITTING)))
    else socket.destroy()
  })
  const contact = new Contact({ brokers: [address], tls: false, timeoutMs: 1_000, logger: SILENT })
  const { signal } = new AbortController()
  await t.rejects(contact.reach(300, signal), { code: 'broker_unavailable' })
  const reached = contact.reach(10_000, signal)
  there = true
  await reached
  t.pass()
})
