import t from 'tap'
import { asWritten, checkAppends, eventBytes } from '../../src/eventlog/check-append.ts'
import { APPEND_LIMITS, EVENT_BYTES_MAX } from '../../src/eventlog/event-log.ts'
import { anAppend, anEvent, aStream, someEvents } from '../support/events.ts'

// What a call and a member must be is held against every adapter by the conformance suite; here are the edges.

t.test('sound members have nothing wrong with them', async t => {
  t.same(checkAppends([anAppend(), anAppend({ expected: 'any' }), anAppend({ expected: 0 })]), [
    null,
    null,
    null,
  ])
  t.same(checkAppends([]), [])
})

t.test('the size of an event counts bytes of data and metadata', async t => {
  t.equal(eventBytes(anEvent({ data: '"é"', metadata: '{}' })), 6)
  const fill = (bytes: number) => anEvent({ data: JSON.stringify('x'.repeat(bytes - 2 - 2)), metadata: '{}' })
  t.same(checkAppends([anAppend({ events: [fill(EVENT_BYTES_MAX)] })]), [null])
  t.match(checkAppends([anAppend({ events: [fill(EVENT_BYTES_MAX + 1)] })]), [{ reason: 'too_large' }])
})

t.test('a member that is rejected does not count towards the bytes of the call', async t => {
  const huge = () => anAppend({ events: [anEvent({ data: JSON.stringify('x'.repeat(EVENT_BYTES_MAX)) })] })
  const checked = checkAppends([anAppend(), ...Array.from({ length: 20 }, huge)])
  t.equal(checked.filter(rejection => rejection === null).length, 1)
})

t.test('an event that is vouched for is not parsed again, and can no longer be changed', async t => {
  const event = asWritten(anEvent({ data: 'not parsed' }))
  t.same(checkAppends([anAppend({ events: [event] })]), [null])
  t.throws(() => Object.assign(event, { data: 'changed' }))
  t.match(
    checkAppends([anAppend({ events: [{ ...event }] })]),
    [{ reason: 'invalid_event' }],
    'a copy is not it',
  )
  t.match(checkAppends([anAppend({ events: [asWritten(anEvent({ id: '' }))] })]), [
    { reason: 'invalid_event' },
  ])
})

t.test('the limits are inclusive', async t => {
  const { appends, events } = APPEND_LIMITS
  t.doesNotThrow(() => checkAppends(Array.from({ length: appends }, () => anAppend())))
  t.throws(() => checkAppends(Array.from({ length: appends + 1 }, () => anAppend())), {
    code: 'log_contract',
  })
  t.doesNotThrow(() => checkAppends([anAppend({ events: someEvents(events) })]))
  t.throws(() => checkAppends([anAppend({ events: someEvents(events + 1) })]), { code: 'log_contract' })
})

t.test('JSON that V8 cannot parse or write is rejected, not thrown', async t => {
  const deep = '['.repeat(200_000) + ']'.repeat(200_000)
  t.match(checkAppends([anAppend({ events: [anEvent({ data: deep })] })]), [{ reason: 'invalid_event' }])
})

t.test('names: letters, digits, dot, underscore and hyphen, up to 128', async t => {
  const rows: [string, boolean][] = [
    [aStream(), true],
    ['a', true],
    ['a'.repeat(128), true],
    ['a'.repeat(129), false],
    ['A.b_c-d', true],
    ['1a', false],
    ['a b', false],
    ['a"', false],
    ['a,b', false],
    ['a\n', false],
    ['ä', false],
  ]
  for (const [name, sound] of rows) {
    t.equal(checkAppends([anAppend({ stream: name })])[0] === null, sound, `stream ${name}`)
    t.equal(
      checkAppends([anAppend({ events: [anEvent({ type: name })] })])[0] === null,
      sound,
      `type ${name}`,
    )
  }
})
