import { request } from 'node:http'
import { connect } from 'node:net'
import t from 'tap'
import { isProblem, startApi } from './fixture.ts'

const { api } = await startApi(t)

const submitRaw = (body: string | Buffer, headers: Record<string, string> = {}) =>
  api.post('/v1/tasks', body, headers)

t.test('S43 a body that cannot be read is refused with its own code, and says where', async t => {
  const cases: [string, string | Buffer, Parameters<typeof isProblem>[2], RegExp][] = [
    ['cut off', '{"type":"a","payload":', 'invalid_json', /not JSON/],
    ['no JSON', 'type=a', 'invalid_json', /not JSON/],
    ['an unquoted date', '{"type":2024-01-01T00:00:00.000-12}', 'invalid_json', /not JSON/],
    ['two values', '{"type":"a"}{"type":"b"}', 'invalid_json', /not JSON/],
    ['only spaces', '   ', 'invalid_json', /not JSON/],
    ['invalid UTF-8', Buffer.from('{"type":"\xff\xfe"}', 'latin1'), 'invalid_json', /UTF-8/],
    ['UTF-16', Buffer.from('{"type":"a"}', 'utf16le'), 'invalid_json', /not JSON/],
    ['overlong UTF-8', Buffer.from('{"type":"\xc0\x80"}', 'latin1'), 'invalid_json', /UTF-8/],
    ['empty', '', 'invalid_request', /expected object/],
    ['null', 'null', 'invalid_request', /expected object/],
    ['an array', '[]', 'invalid_request', /expected object/],
    ['a text', '"a"', 'invalid_request', /expected object/],
    ['300,000 levels', '['.repeat(300_000), 'json_too_deep', /64 levels, at byte \d+/],
    [
      'a payload of 300,000 levels',
      `{"type":"a","payload":${'['.repeat(300_000)}${']'.repeat(300_000)}}`,
      'json_too_deep',
      /64 levels, at byte \d+/,
    ],
    ['__proto__', '{"type":"a","payload":{"__proto__":{"x":1}}}', 'forbidden_key', /__proto__/],
    ['escaped __proto__', '{"type":"a","payload":{"__prot\\u006f__":1}}', 'forbidden_key', /__proto__/],
    ['__proto__ beside type', '{"__proto__":{"type":"a"}}', 'forbidden_key', /__proto__/],
    [
      'constructor.prototype',
      '{"type":"a","payload":{"constructor":{"prototype":{}}}}',
      'forbidden_key',
      /constructor\.prototype/,
    ],
    ['2^53+1', '{"type":"a","payload":9007199254740993}', 'number_not_exact', /9007199254740993 at byte 22/],
    ['-2^53-1', '{"type":"a","payload":[-9007199254740993]}', 'number_not_exact', /at byte 23/],
    ['1e400', '{"type":"a","payload":1e400}', 'number_not_exact', /1e400 at byte 22/],
    ['-1e400', '{"type":"a","payload":-1E+400}', 'number_not_exact', /-1E\+400/],
    [
      'a number of 5,000 digits',
      `{"type":"a","payload":${'9'.repeat(5_000)}}`,
      'number_not_exact',
      /9{40} at/,
    ],
  ]
  for (const [name, body, code, detail] of cases)
    t.test(name, async t => isProblem(t, await submitRaw(body), code, detail))
  t.test('the process lives', async t => t.equal((await api.get('/livez')).status, 200))
})

t.test('a body without a content type, or with another one, is refused', async t => {
  for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/jsonp', 'nonsense'])
    isProblem(t, await submitRaw('{"type":"a"}', { 'content-type': type }), 'unsupported_media_type')
  isProblem(t, await submitRaw('{"type":"a"}', { 'content-type': '' }), 'unsupported_media_type')
})

t.test('only UTF-8 is read: another charset is refused instead of misread', async t => {
  for (const charset of ['utf-16', 'UTF-16LE', 'latin1', '"iso-8859-1"', 'utf-7'])
    isProblem(
      t,
      await submitRaw('{"type":"a"}', { 'content-type': `application/json; charset=${charset}` }),
      'unsupported_media_type',
      /UTF-8/,
    )
  for (const charset of ['utf-8', 'UTF-8', '"utf-8"', 'utf8']) {
    const answer = await submitRaw('{"type":"a"}', { 'content-type': `application/json; charset=${charset}` })
    t.equal(answer.status, 201, charset)
  }
})

t.test('a byte order mark before the body is ignored', async t => {
  t.match(await submitRaw('\uFEFF{"type":"a","payload":"\uFEFFx"}'), {
    status: 201,
    body: { payload: '\uFEFFx' },
  })
  isProblem(t, await submitRaw('\uFEFF{"__proto__":1}'), 'forbidden_key')
})

t.test('a body larger than the route accepts is refused', async t => {
  const spaces = (bytes: number) => Buffer.alloc(bytes, ' ')
  isProblem(t, await submitRaw(spaces(1024 * 1024 + 1)), 'body_too_large')
  isProblem(t, await api.post('/v1/tasks/batch', spaces(16 * 1024 * 1024 + 1)), 'body_too_large')
  isProblem(t, await api.post('/v1/workers/report', spaces(16 * 1024 * 1024 + 1)), 'body_too_large')
})

t.test('a body that ends before its length is no request, and the next one is served', async t => {
  const { hostname, port } = new URL(api.url)
  await new Promise<void>(resolve => {
    const headers = { 'content-type': 'application/json', 'content-length': 100 }
    const sent = request({ hostname, port, method: 'POST', path: '/v1/tasks', headers })
    sent.on('error', () => resolve())
    sent.write('{"type":', () => sent.destroy(new Error('gone')))
  })
  t.equal((await api.get('/livez')).status, 200)
})

t.test('what is no HTTP request is answered with a problem too', async t => {
  const talk = (text: string) =>
    new Promise<string>((resolve, reject) => {
      const socket = connect(Number(new URL(api.url).port), '127.0.0.1', () => socket.write(text))
      let answer = ''
      socket.setEncoding('utf8')
      socket.on('data', part => {
        answer += part
      })
      socket.on('error', reject)
      socket.on('close', () => resolve(answer))
    })
  const nonsense = await talk('HELLO\r\n\r\n')
  t.match(nonsense, /^HTTP\/1\.1 400 Bad Request\r\ncontent-type: application\/problem\+json/i)
  t.match(nonsense, /"code":"invalid_request"/)
  const headers = await talk(`GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ${'x'.repeat(20_000)}\r\n\r\n`)
  t.match(headers, /^HTTP\/1\.1 431 /)
  t.match(headers, /"code":"headers_too_large"/)
})

t.test('a key that stands twice counts as the last one', async t => {
  t.match(await submitRaw('{"type":"a","payload":1,"payload":{"x":1,"x":2}}'), {
    body: { payload: { x: 2 } },
  })
})
