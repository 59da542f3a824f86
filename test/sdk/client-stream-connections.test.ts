/** How a stream holds on over its connections, against a server that is told what to do. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { createClient as createBrowserClient } from '../../src/sdk/browser-client.ts'
import { createClient, RollcallError, type StreamMessage, type StreamOptions } from '../../src/sdk/client.ts'
import { freePort } from '../cli/fixture.ts'
import { startScriptedService } from './scripted-stream.ts'

const TASK = '00000000-0000-4000-8000-000000000000'
/** As soon as the client allows. */
const SOON = 'retry: 1\n\n'

/** What a stream yields, in short: the events, and resyncs by their reasons. */
async function collect(stream: AsyncIterable<StreamMessage>): Promise<string[]> {
  const found: string[] = []
  for await (const message of stream) found.push(shortOf(message))
  return found
}

const shortOf = (message: StreamMessage): string =>
  message.kind === 'task' ? `${message.event} ${message.id}` : `resync ${message.reason} ${message.id}`

const streamOf = (url: string, options?: StreamOptions) => createClient({ url }).stream(TASK, options)

t.test('a stream goes on behind the last id, until the task is final', async t => {
  const { url, connections } = await startScriptedService(t, connection => {
    connection.write(SOON)
    if (connection.number === 1) {
      connection.task(TASK, null, 'a-0')
      connection.task(TASK, 'TaskStarted', 'a-1')
      connection.task(TASK, null)
      // Half a message is none: it comes again whole.
      connection.write('event: task\nid: a-2\ndata: {"event":"TaskSuc')
      setTimeout(connection.drop, 20)
    } else {
      connection.task(TASK, 'TaskSucceeded', 'a-2')
      connection.event('end', { reason: 'final' })
      connection.end()
    }
  })
  const errors: unknown[] = []
  const found = await collect(streamOf(url, { onError: error => errors.push(error) }))
  t.strictSame(found, ['null a-0', 'TaskStarted a-1', 'null a-1', 'TaskSucceeded a-2'])
  t.strictSame(
    connections.map(({ path, headers }) => [path, headers['last-event-id']]),
    [
      [`/v1/tasks/${TASK}/events`, undefined],
      [`/v1/tasks/${TASK}/events`, 'a-1'],
    ],
  )
  t.match(errors, [{ code: 'unreachable', retryable: true }])
})

t.test('a stream ends where there is nothing more to come, and begins where it was told to', async t => {
  const { url, connections } = await startScriptedService(t, connection => connection.refuse(204))
  t.strictSame(await collect(streamOf(url, { lastEventId: 'a-9' })), [])
  t.equal(connections[0]?.headers['last-event-id'], 'a-9')
})

t.test('a service that shuts down says when to come back, a full one as well', async t => {
  const came: number[] = []
  const { url } = await startScriptedService(t, connection => {
    came.push(performance.now())
    if (connection.number === 1) {
      connection.task(TASK, null, 'a-0')
      connection.write('retry: 400\n\n')
      connection.event('end', { reason: 'shutting_down' })
      connection.end()
    } else if (connection.number === 2)
      connection.refuse(503, { code: 'too_many_streams', detail: 'later' }, { 'retry-after': '1' })
    else {
      connection.event('end', { reason: 'final' })
      connection.end()
    }
  })
  const errors: unknown[] = []
  t.strictSame(await collect(streamOf(url, { onError: error => errors.push(error) })), ['null a-0'])
  t.ok(came[1]! - came[0]! >= 390, `${came}`)
  t.ok(came[2]! - came[1]! >= 990, `${came}`)
  t.match(errors, [{ code: 'too_many_streams', retryAfterMs: 1_000 }])
})

t.test('a resync is told, and what follows it', async t => {
  const { url } = await startScriptedService(t, connection => {
    connection.event('resync', { reason: 'too_far_behind' })
    connection.task(TASK, null, 'b-7')
    connection.event('something_new', { answer: 42 }, 'b-8')
    connection.event('end', { reason: 'final' })
  })
  t.strictSame(await collect(streamOf(url, { lastEventId: 'a-1' })), [
    'resync too_far_behind a-1',
    'null b-7',
  ])
})

t.test('what came faster than it was taken is told again, so nobody hears of it', async t => {
  const { url, connections } = await startScriptedService(t, connection => {
    connection.write(SOON)
    if (connection.number === 1) {
      connection.task(TASK, null, 'a-0')
      connection.event('resync', { reason: 'slow' })
      connection.end()
    } else {
      connection.task(TASK, 'TaskStarted', 'a-1')
      connection.event('end', { reason: 'final' })
    }
  })
  t.strictSame(await collect(streamOf(url)), ['null a-0', 'TaskStarted a-1'])
  t.equal(connections[1]?.headers['last-event-id'], 'a-0')
})

t.test('a connection through which nothing comes is taken for lost; pings keep it', async t => {
  const { url, connections } = await startScriptedService(t, async connection => {
    connection.write(SOON)
    if (connection.number === 1) return connection.task(TASK, null, 'a-0')
    for (let pings = 0; pings < 6; pings++) {
      await sleep(250)
      connection.write(': ping\n\n')
    }
    connection.event('end', { reason: 'final' })
  })
  const errors: unknown[] = []
  t.strictSame(await collect(streamOf(url, { idleMs: 1_000, onError: error => errors.push(error) })), [
    'null a-0',
  ])
  t.match(errors, [{ code: 'timeout', message: /not even a ping/ }])
  t.equal(connections.length, 2)
  await connections[0]!.gone
})

t.test('a consumer that does not take is not read for', async t => {
  const LINE = `: ${'x'.repeat(64 * 1024)}\n\n`
  const LINES = 400
  const { url, connections } = await startScriptedService(t, connection => {
    connection.task(TASK, null, 'a-0')
    for (let lines = 0; lines < LINES; lines++) connection.write(LINE)
    connection.event('end', { reason: 'final' })
  })
  const stream = streamOf(url)
  await stream.next()
  await sleep(300)
  const waiting = connections[0]!.waiting()
  t.ok(waiting > (LINES * LINE.length) / 2, `${waiting} bytes wait at the server`)
  t.strictSame(await collect(stream), [])
})

t.test('leaving closes the connection at once, in a loop, while waiting, by a signal', async t => {
  const { url, connections } = await startScriptedService(t, connection => {
    connection.task(TASK, null, `a-${connection.number}`)
    connection.task(TASK, 'TaskStarted', `b-${connection.number}`)
  })
  for await (const message of streamOf(url)) if (message.id) break
  await connections[0]!.gone

  const waiting = streamOf(url)
  await waiting.next()
  await waiting.next()
  const pending = waiting.next()
  t.match(await waiting.return(), { done: true })
  t.match(await pending, { done: true })
  t.match(await waiting.next(), { done: true })
  await connections[1]!.gone

  const reason = new Error('the page was closed')
  const leaving = new AbortController()
  const stopped = streamOf(url, { signal: leaving.signal })
  await stopped.next()
  leaving.abort(reason)
  await connections[2]!.gone
  await t.rejects(stopped.next(), reason)
  t.match(await stopped.next(), { done: true })
  await t.rejects(streamOf(url, { signal: leaving.signal }).next(), reason)

  const unasked = streamOf(url)
  t.match(await unasked.return(), { done: true })
  t.equal(connections.length, 3)
})

t.test('what cannot be survived is thrown, with its code', async t => {
  const { url } = await startScriptedService(t, connection => {
    const [, what] = connection.path.match(/type=(\w+)/) ?? []
    if (what === 'unknown') connection.refuse(404, { code: 'not_found', detail: 'no such task' })
    else if (what === 'html') connection.refuse(200, {}, { 'content-type': 'text/html' })
    else if (what === 'spoilt') connection.write('event: task\ndata: {"event":\n\n')
    else connection.write(`data: ${'x'.repeat(5 * 1024 * 1024)}\n\n`)
  })
  const client = createClient({ url, retries: 1 })
  const next = (type: string) => client.stream({ type }).next()
  await t.rejects(next('unknown'), { name: 'RollcallError', code: 'not_found', status: 404 })
  await t.rejects(next('html'), { code: 'bad_answer', status: 200 })
  await t.rejects(next('spoilt'), { code: 'bad_answer' })
  await t.rejects(next('large'), { code: 'bad_answer', message: /larger than any/ })
  const nowhere = createClient({ url: `http://127.0.0.1:${await freePort()}`, retries: 1 })
  await t.rejects(nowhere.stream(TASK).next(), { code: 'unreachable', message: /ECONNREFUSED/ })
})

t.test(
  'once it was there, a service may be away for longer than a call may take, but not for ever',
  async t => {
    const { url, connections } = await startScriptedService(t, connection => {
      if (connection.number > 1) return connection.drop()
      connection.write(SOON)
      connection.task(TASK, null, 'a-0')
      setTimeout(connection.drop, 20)
    })
    const errors: RollcallError[] = []
    const stream = createClient({ url, retries: 0, timeoutMs: 200 }).stream(TASK, {
      outageMs: 1_500,
      onError: error => errors.push(error as RollcallError),
    })
    await t.rejects(collect(stream), { code: 'unreachable' })
    t.ok(connections.length >= 2 && connections.length <= 8, `${connections.length} connections`)
    t.ok(errors.every(error => error instanceof RollcallError))
  },
)

t.test('a connection that does not open in time is tried again', async t => {
  const { url, connections } = await startScriptedService(t, connection => {
    if (connection.number === 1) return
    connection.event('end', { reason: 'final' })
  })
  t.strictSame(await collect(createClient({ url, timeoutMs: 3_000 }).stream(TASK)), [])
  t.equal(connections.length, 2)
  await connections[0]!.gone
})

t.test(
  'a filter is asked as it is meant, with the key, also by a fetch of its own and without Node',
  async t => {
    const { url, connections } = await startScriptedService(t, connection =>
      connection.event('end', { reason: 'final' }),
    )
    let calls = 0
    const counting: typeof fetch = (...request) => {
      calls++
      return fetch(...request)
    }
    const filter = {
      type: 'image.generate',
      status: ['FAILED', 'CANCELLED'] as const,
      labels: { customer: 'a&b' },
      tenant: 'acme',
    }
    for (const client of [
      createClient({ url: `${url}/under`, key: 'rck_1_secret', fetch: counting }),
      createBrowserClient({ url: `${url}/under`, key: 'rck_1_secret' }),
    ])
      await collect(client.stream(filter))
    t.equal(calls, 1)
    t.strictSame(
      connections.map(({ path, headers }) => [path, headers.authorization]),
      Array.from({ length: 2 }, () => [
        '/under/v1/events?type=image.generate&status=FAILED&status=CANCELLED&tenant=acme&label.customer=a%26b',
        'Bearer rck_1_secret',
      ]),
    )
  },
)

t.test('options that cannot be meant fail at once', async t => {
  const client = createClient({ url: 'http://127.0.0.1:8080' })
  for (const options of [{ lastEventId: 'two words' }, { outageMs: 0 }, { idleMs: Number.NaN }])
    t.throws(() => client.stream(TASK, options), { name: 'TypeError' })
})
