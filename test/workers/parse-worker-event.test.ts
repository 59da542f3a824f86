import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import t from 'tap'
import { DEAD_LETTER_REASONS, type DeadLetterReason } from '../../src/workers/dead-letters.ts'
import { parseWorkerEvent, RECORD_BYTES } from '../../src/workers/parse-worker-event.ts'
import { workerEventJsonSchema, workerEventSchema } from '../../src/workers/worker-events.ts'
import { anEvent, aRecord, recordOf } from './worker-event-records.ts'

const ID = '018f4e7a-0000-7000-8000-00000000000a'
const page = readFileSync(new URL('../../docs/worker-events.md', import.meta.url), 'utf8')

const bytesOf = (event: object): string => JSON.stringify(event)
/** An event whose field is spelled out, as JSON.stringify would not write it. */
const spelled = (trigger: string, field: string, json: string): Buffer =>
  Buffer.from(`${bytesOf(anEvent(ID, trigger)).slice(0, -1)},${JSON.stringify(field)}:${json}}`)
const keyed = (value: Buffer | string | null, key: string | null = ID) =>
  aRecord({ key: key === null ? null : Buffer.from(key), value: value === null ? null : Buffer.from(value) })
const without = (event: Record<string, unknown>, field: string): object =>
  Object.fromEntries(Object.entries(event).filter(([name]) => name !== field))

const good = anEvent(ID, 'SUCCEED')
const other = '018f4e7a-0000-7000-8000-00000000000b'
const deep = (levels: number): string => '['.repeat(levels) + ']'.repeat(levels)
const unfit = (over: object): string => bytesOf({ ...anEvent(ID, 'SUCCEED'), ...over })

/** What it is called, the record, the reason, what the message says, and the task where it can be known. */
const BAD: [string, ReturnType<typeof aRecord>, DeadLetterReason, RegExp, string | null][] = [
  ['no key', keyed(bytesOf(good), null), 'no_key', /has no key/, ID],
  ['an empty key', keyed(bytesOf(good), ''), 'key_mismatch', new RegExp(ID), ID],
  ['the key of another task', keyed(bytesOf(good), other), 'key_mismatch', new RegExp(ID), ID],
  ['the key in braces', keyed(bytesOf(good), `{${ID}}`), 'key_mismatch', /key is not its id/, ID],
  ['a long key', keyed(bytesOf(good), 'k'.repeat(100_000)), 'key_mismatch', /key is not its id/, ID],
  ['no value', keyed(null), 'no_value', /has no value/, ID],
  ['neither key nor value', keyed(null, null), 'no_value', /has no value/, null],
  ['an empty value', keyed(''), 'invalid_json', /not JSON/, ID],
  ['5 MB', keyed(unfit({ result: 'x'.repeat(5_000_000) })), 'record_too_large', /5000\d\d\d bytes/, ID],
  ['one byte too many', keyed(Buffer.alloc(RECORD_BYTES + 1)), 'record_too_large', /1048577 bytes/, ID],
  ['a brace', keyed('{'), 'invalid_json', /not JSON/, ID],
  ['two values', keyed(`${bytesOf(good)}${bytesOf(good)}`), 'invalid_json', /not JSON/, ID],
  ['no UTF-8', keyed(Buffer.from([0x7b, 0xff, 0x7d])), 'invalid_json', /not UTF-8/, ID],
  ['UTF-16', keyed(Buffer.from(bytesOf(good), 'utf16le')), 'invalid_json', /./, ID],
  ['a NUL between the fields', keyed(bytesOf(good).replace(',', ',\0')), 'invalid_json', /not JSON/, ID],
  ['300,000 levels', keyed(deep(300_000)), 'json_too_deep', /deeper than 64/, ID],
  ['300,000 levels never closed', keyed('['.repeat(300_000)), 'json_too_deep', /deeper than 64/, ID],
  ['300,000 objects', keyed('{"a":'.repeat(100_000)), 'json_too_deep', /deeper than 64/, ID],
  ['a result of 65 levels', keyed(spelled('SUCCEED', 'result', deep(65))), 'json_too_deep', /64 levels/, ID],
  [
    '2^53 + 1',
    keyed(spelled('SUCCEED', 'result', '9007199254740993')),
    'number_not_exact',
    /9007199254740993/,
    ID,
  ],
  ['1e400', keyed(spelled('SUCCEED', 'result', '{"n":1e400}')), 'number_not_exact', /1e400/, ID],
  [
    '__proto__',
    keyed(spelled('SUCCEED', 'result', '{"__proto__":{"a":1}}')),
    'forbidden_key',
    /__proto__/,
    ID,
  ],
  [
    '__proto__ in escapes',
    keyed(spelled('SUCCEED', 'result', '{"\\u005f_proto__":1}')),
    'forbidden_key',
    /__proto__/,
    ID,
  ],
  [
    'constructor.prototype',
    keyed(spelled('SUCCEED', 'result', '{"constructor":{"prototype":1}}')),
    'forbidden_key',
    /constructor/,
    ID,
  ],
  ['null', keyed('null'), 'invalid_event', /./, ID],
  ['a text', keyed('"SUCCEED"'), 'invalid_event', /./, ID],
  ['a list', keyed(`[${bytesOf(good)}]`), 'invalid_event', /./, ID],
  ['an unknown trigger', keyed(unfit({ trigger: 'CANCEL' })), 'invalid_event', /trigger/, ID],
  ['a trigger in small letters', keyed(unfit({ trigger: 'succeed' })), 'invalid_event', /trigger/, ID],
  ['no trigger', keyed(bytesOf(without(good, 'trigger'))), 'invalid_event', /trigger/, ID],
  ['no taskId', keyed(bytesOf(without(good, 'taskId'))), 'invalid_event', /taskId/, ID],
  ['no commandId', keyed(bytesOf(without(good, 'commandId'))), 'invalid_event', /commandId/, ID],
  ['a taskId that is none', keyed(unfit({ taskId: 'one' })), 'invalid_event', /taskId: must be a UUID/, ID],
  [
    'a taskId with a line end',
    keyed(unfit({ taskId: `${ID}\n` })),
    'invalid_event',
    /taskId: must be a UUID/,
    ID,
  ],
  ['an attempt in a text', keyed(unfit({ attempt: '1' })), 'invalid_event', /attempt/, ID],
  ['attempt 0', keyed(unfit({ attempt: 0 })), 'invalid_event', /attempt/, ID],
  ['attempt 1.5', keyed(unfit({ attempt: 1.5 })), 'invalid_event', /attempt/, ID],
  ['a token of spaces', keyed(unfit({ leaseToken: ' '.repeat(20) })), 'invalid_event', /leaseToken/, ID],
  [
    'a NUL in the token',
    keyed(unfit({ leaseToken: `${'x'.repeat(20)}\0` })),
    'invalid_event',
    /leaseToken/,
    ID,
  ],
  ['a NUL in the worker', keyed(unfit({ worker: 'w\0' })), 'invalid_event', /worker/, ID],
  ['a lone surrogate in the worker', keyed(unfit({ worker: 'w\ud800' })), 'invalid_event', /worker/, ID],
  ['a NUL in the commandId', keyed(unfit({ commandId: 'c\0' })), 'invalid_event', /commandId/, ID],
  ['a NUL in the step', keyed(bytesOf(anEvent(ID, 'STEP', { step: 'A\0' }))), 'invalid_event', /step/, ID],
  [
    'a script as resultUrl',
    keyed(unfit({ resultUrl: 'javascript:alert(1)' })),
    'invalid_event',
    /resultUrl/,
    ID,
  ],
  ['a NUL in the resultUrl', keyed(unfit({ resultUrl: 'http://a/\0' })), 'invalid_event', /resultUrl/, ID],
  [
    'a lone surrogate in the resultUrl',
    keyed(unfit({ resultUrl: 'http://a/\ud800' })),
    'invalid_event',
    /resultUrl/,
    ID,
  ],
  [
    'an error without message',
    keyed(bytesOf(anEvent(ID, 'FAIL', { error: {} }))),
    'invalid_event',
    /error\.message/,
    ID,
  ],
  [
    'a progress of 2',
    keyed(bytesOf(anEvent(ID, 'PROGRESS', { progress: 2 }))),
    'invalid_event',
    /progress/,
    ID,
  ],
  ['a field too many', keyed(unfit({ progress: 1 })), 'invalid_event', /progress/, ID],
  [
    'a field of another trigger',
    keyed(bytesOf(anEvent(ID, 'START', { result: 1 }))),
    'invalid_event',
    /result/,
    ID,
  ],
  [
    'a long name of a field too many',
    keyed(unfit({ [`\0\ud800${'x'.repeat(900_000)}`]: 1 })),
    'invalid_event',
    /…$/,
    ID,
  ],
  [
    'a result of 257 KiB',
    keyed(unfit({ result: 'x'.repeat(257 * 1024) })),
    'content_too_large',
    /result/,
    ID,
  ],
  [
    'a context of 17 KiB',
    keyed(bytesOf(anEvent(ID, 'STEP', { step: 'A', context: 'x'.repeat(17 * 1024) }))),
    'content_too_large',
    /context/,
    ID,
  ],
  [
    'a reason of 5 KiB',
    keyed(bytesOf(anEvent(ID, 'RELEASE', { reason: 'x'.repeat(5 * 1024) }))),
    'content_too_large',
    /reason/,
    ID,
  ],
  [
    'too large and wrong',
    keyed(unfit({ result: 'x'.repeat(257 * 1024), attempt: 0 })),
    'invalid_event',
    /attempt/,
    ID,
  ],
]

for (const [what, record, code, message, taskId] of BAD)
  t.test(`${what}: ${code}`, async t => {
    const { event, fault } = parseWorkerEvent(record)
    t.equal(event, null)
    t.match(fault, { code, message, taskId })
    t.ok(Buffer.byteLength(fault?.message ?? '') <= 1_000, 'the message is short')
    t.ok(!/[\0\p{Surrogate}]/u.test(fault?.message ?? ''), 'and can be stored')
  })

t.test('every reason that is found by reading alone is in the table', async t => {
  const byTheLog = ['not_found', 'set_aside', 'too_large', 'internal_error']
  t.strictSame(
    new Set([...BAD.map(([, , code]) => code), ...byTheLog]),
    new Set(Object.keys(DEAD_LETTER_REASONS)),
  )
})

t.test('what is taken, and as what', async t => {
  const event = (trigger: string, over: object = {}) =>
    parseWorkerEvent(recordOf(anEvent(ID, trigger, { ...over }))).event
  t.match(event('START'), { trigger: 'START', taskId: ID, attempt: 1 })
  t.match(event('SUCCEED'), { result: null, resultUrl: null })
  t.match(event('SUCCEED', { result: 'x\0\ud800' }), { result: 'x\0\ud800' }, 'a result is kept as it is')
  t.match(event('SUCCEED', { result: 0.1, resultUrl: 'https://x.example/ä?q=%00' }), { result: 0.1 })
  t.match(event('FAIL', { error: { code: 'a\0b', message: 'x\0y\ud800', detail: '\udc00' } }), {
    error: { code: 'a_b', message: 'x�y�', detail: '�' },
    retryable: true,
    retryAfterMs: null,
  })
  t.match(event('RELEASE', { reason: '\0' }), { reason: '�' })
  t.match(event('PROGRESS', { progress: 0.5 }), { progress: 0.5 })
  t.match(event('HEARTBEAT'), { trigger: 'HEARTBEAT' })
  t.match(event('STEP', { step: 'UPLOADING', context: { at: '\0' } }), { context: { at: '\0' } })
  t.match(event('SUCCEED', { result: JSON.parse(deep(64)) }), { trigger: 'SUCCEED' }, '64 levels')
  const long = event('FAIL', { error: { message: 'x'.repeat(300_000) } })
  t.ok(long?.trigger === 'FAIL' && Buffer.byteLength(long.error.message) <= 64 * 1024, 'errors are cut')
  t.match(parseWorkerEvent(keyed(`\ufeff${bytesOf(good)}`)).event, { taskId: ID }, 'behind a byte order mark')
})

t.test('a task id in capitals is the same id, in the key and in the value', async t => {
  const upper = ID.toUpperCase()
  for (const [key, named] of [
    [upper, ID],
    [ID, upper],
    [upper, upper],
  ] as const)
    t.match(parseWorkerEvent(recordOf(anEvent(named, 'START'), { key: Buffer.from(key) })).event, {
      taskId: ID,
    })
})

t.test('nothing that a record holds makes it throw', async () => {
  const bytes = fc.option(
    fc.oneof(
      fc.uint8Array({ maxLength: 64 }).map(array => Buffer.from(array)),
      fc.json({ maxDepth: 5 }).map(text => Buffer.from(text)),
      fc
        .record({ trigger: fc.constantFrom('START', 'SUCCEED', 'FAIL', 'STEP'), taskId: fc.anything() })
        .map(object =>
          Buffer.from(JSON.stringify(object, (_, value) => (typeof value === 'bigint' ? 1 : value))),
        ),
      fc.tuple(fc.nat(400), fc.uint8Array({ minLength: 1, maxLength: 4 })).map(([at, some]) => {
        const spoilt = Buffer.from(bytesOf(good))
        spoilt.set(some, at % (spoilt.length - 4))
        return spoilt
      }),
    ),
  )
  fc.assert(
    fc.property(bytes, bytes, (key, value) => {
      const { event, fault } = parseWorkerEvent(aRecord({ key, value }))
      return (event === null) !== (fault === null)
    }),
    { numRuns: 2_000 },
  )
  fc.assert(
    fc.property(fc.nat(400), fc.uint8Array({ minLength: 1, maxLength: 2 }), (at, some) => {
      const spoilt = Buffer.from(bytesOf(good))
      spoilt.set(some, at % (spoilt.length - 2))
      const { event, fault } = parseWorkerEvent(aRecord({ key: Buffer.from(ID), value: spoilt }))
      return (event === null) !== (fault === null)
    }),
    { numRuns: 2_000 },
  )
})

t.test('docs/worker-events.schema.json is the schema', async t => {
  const file = readFileSync(new URL('../../docs/worker-events.schema.json', import.meta.url), 'utf8')
  t.strictSame(JSON.parse(file), JSON.parse(JSON.stringify(workerEventJsonSchema())))
})

t.test('docs/worker-events.md has every trigger, and every reason as it is', async t => {
  const rows = [...page.matchAll(/^\| `([a-z_]+)` \| (.+) \|$/gm)].map(([, code, meaning]) => [code, meaning])
  t.strictSame(rows, Object.entries(DEAD_LETTER_REASONS))
  const triggers = [...page.matchAll(/^\| `([A-Z]+)` \|/gm)].map(([, trigger]) => trigger)
  t.strictSame(
    triggers,
    workerEventSchema.options.map(({ shape }) => shape.trigger.value),
  )
})
