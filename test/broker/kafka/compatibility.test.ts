import { once } from 'node:events'
import { createRequire } from 'node:module'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import {
  apiVersions,
  assertCompatible,
  CLIENT_APIS,
  incompatibilities,
} from '../../../src/broker/kafka/compatibility.ts'
import { kafkaBroker } from '../../support/kafka.ts'

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

t.test('the table of versions is that of the client that is installed', async t => {
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

t.test('the real broker takes what the client sends', async t => {
  const broker = await kafkaBroker(t)
  if (!broker) return
  await assertCompatible(broker.brokers)
  const versions = await apiVersions({ broker: broker.brokers[0]! })
  t.ok(versions.size > Object.keys(CLIENT_APIS).length)
  t.same(incompatibilities(versions), [])
})

t.test('an API whose old versions are gone, and one that is missing, are named', async t => {
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
