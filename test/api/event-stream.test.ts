/** One stream and a client that does not keep up: what is kept for it is bounded, and it is told so. Over real sockets. */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import Fastify from 'fastify'
import t, { type Test } from 'tap'
import { EventStream, STREAM_LIMITS } from '../../src/api/streams/event-stream.ts'
import { end } from '../../src/api/streams/messages.ts'
import { until } from './fixture.ts'

interface Opened {
  stream: EventStream
  socket: Socket
  left: () => number
  closed: () => number
}

/** A stream whose client reads nothing until it is told to. */
async function open(t: Test): Promise<Opened> {
  const app = Fastify()
  let [left, closed] = [0, 0]
  const opened = new Promise<EventStream>(resolve => {
    app.get('/', async (_request, reply) => {
      reply.header('x-set-before', 'yes')
      resolve(
        new EventStream(
          reply,
          () => left++,
          () => closed++,
        ),
      )
      return reply
    })
  })
  await app.listen({ port: 0, host: '127.0.0.1' })
  t.teardown(async () => {
    app.server.closeAllConnections()
    await app.close()
  })
  const socket = connect((app.server.address() as { port: number }).port, '127.0.0.1')
  t.teardown(() => socket.destroy())
  socket.on('error', () => {})
  socket.pause()
  socket.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')
  return { stream: await opened, socket, left: () => left, closed: () => closed }
}

/** Everything it has been sent, until its end. */
async function readAll(socket: Socket): Promise<string> {
  let text = ''
  socket.setEncoding('utf8').on('data', part => {
    text += part
  })
  socket.resume()
  await once(socket, 'close')
  return text
}

const LARGE = Buffer.from(`data: ${'x'.repeat(32 * 1024)}\n\n`)

/** Sends until nothing more goes to the socket, and no further. */
async function fill({ stream }: Opened): Promise<number> {
  let sent = 0
  let isBlocked = false
  while (!isBlocked) {
    stream.send(LARGE)
    sent++
    isBlocked = true
    await Promise.race([
      stream.room().then(() => {
        isBlocked = false
      }),
      new Promise(resolve => setTimeout(resolve, 100)),
    ])
  }
  return sent
}

t.test('headers that were set before are sent, and the connection ends with the stream', async t => {
  const { stream, socket, left, closed } = await open(t)
  stream.send(Buffer.from('data: 1\n\n'))
  stream.end(end('final'))
  stream.end(end('shutting_down'))
  stream.send(Buffer.from('data: 2\n\n'))
  const text = await readAll(socket)
  t.match(text, /^HTTP\/1\.1 200 OK\r\n/)
  t.match(text, /^x-set-before: yes\r$/m)
  t.match(text, /^content-type: text\/event-stream\r$/m)
  t.match(text, /data: 1[\s\S]*event: end\ndata: \{"reason":"final"\}/)
  t.notMatch(text, /data: 2|shutting_down/)
  t.strictSame([left(), closed()], [1, 1])
})

t.test('what a slow client does not take waits, and comes in its order', async t => {
  const opened = await open(t)
  await fill(opened)
  for (let n = 0; n < 5; n++) opened.stream.send(Buffer.from(`data: last ${n}\n\n`))
  t.ok(opened.stream.isOpen)
  const reading = readAll(opened.socket)
  await opened.stream.room()
  opened.stream.end(end('final'))
  const text = await reading
  t.strictSame(
    [...text.matchAll(/last \d/g)].map(([line]) => line),
    ['last 0', 'last 1', 'last 2', 'last 3', 'last 4'],
  )
})

for (const [what, message, count] of [
  ['bytes', LARGE, Math.ceil(STREAM_LIMITS.bytes / LARGE.length)],
  ['messages', Buffer.from('data: 1\n\n'), STREAM_LIMITS.messages + 1],
] as const)
  t.test(`more ${what} than are kept: what waits is dropped, and its last message says so`, async t => {
    const opened = await open(t)
    await fill(opened)
    for (let n = 1; n < count; n++) opened.stream.send(message)
    t.ok(opened.stream.isOpen, 'as many as are kept')
    for (let n = 0; n < 100; n++) opened.stream.send(message)
    t.notOk(opened.stream.isOpen)
    t.equal(opened.left(), 1, 'nothing more is told for it')
    t.equal(opened.closed(), 0)
    const text = await readAll(opened.socket)
    t.match(text, /event: resync\ndata: \{"reason":"slow"\}\n\n\r\n0\r\n\r\n$/)
    t.equal(opened.closed(), 1)
  })

t.test('a client that takes nothing for long is cut', async t => {
  const opened = await open(t)
  await fill(opened)
  const now = performance.now()
  opened.stream.cutIfStalled(now + 1_000)
  t.ok(opened.stream.isOpen)
  opened.stream.cutIfStalled(now + 31_000)
  await until('it is cut', () => opened.closed() === 1)
  t.equal(opened.left(), 1)
  opened.stream.send(LARGE)
  opened.stream.end(end('final'))
})

t.test('a client that has gone before is closed at once', async t => {
  const app = Fastify()
  t.teardown(() => app.close())
  const closed = new Promise<void>(resolve => {
    app.get('/', async (_request, reply) => {
      reply.raw.destroy()
      await new Promise(resolve => setTimeout(resolve, 20))
      new EventStream(reply, () => {}, resolve)
      return reply
    })
  })
  await app.listen({ port: 0, host: '127.0.0.1' })
  const socket = connect((app.server.address() as { port: number }).port, '127.0.0.1')
  socket.on('error', () => {})
  socket.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')
  await closed
  t.pass('it is told')
})
