/** What handlers return and throw, as reports: nothing may hang a task or end the worker. */
import t from 'tap'
import { PermanentError, RetryLater } from '../../src/sdk/errors.ts'
import { encodeJson, outcomeOfReturn, outcomeOfThrow } from '../../src/sdk/outcome.ts'

t.test('whatever was thrown becomes a code and a message', async t => {
  const hostile = new Proxy(
    {},
    {
      get: () => {
        throw new Error('no')
      },
      getPrototypeOf: () => {
        throw new Error('no')
      },
    },
  )
  const unreadable = Object.defineProperty(new Error('x'), 'message', {
    get: () => {
      throw new Error('no')
    },
  })
  const cases: [unknown, code: string, message: string | RegExp][] = [
    [new Error('plain'), 'handler_error', 'plain'],
    [new RangeError('too far'), 'RangeError', 'too far'],
    [Object.assign(new Error('connect'), { code: 'ECONNREFUSED' }), 'ECONNREFUSED', 'connect'],
    [Object.assign(new Error('odd'), { code: 'not a code!' }), 'handler_error', 'odd'],
    [Object.assign(new Error('number'), { code: 42 }), 'handler_error', 'number'],
    [new PermanentError('never', { code: 'never_ever' }), 'never_ever', 'never'],
    [new PermanentError('never'), 'handler_error', 'never'],
    [new RetryLater('later', { afterMs: 10 }), 'handler_error', 'later'],
    [new Error(''), 'handler_error', 'Error'],
    ['text', 'handler_error', 'text'],
    ['', 'handler_error', /threw "", which is not an Error/],
    [undefined, 'handler_error', /threw undefined,/],
    [null, 'handler_error', /threw null,/],
    [42, 'handler_error', /threw 42,/],
    [10n, 'handler_error', /threw a bigint,/],
    [Symbol('s'), 'handler_error', /threw Symbol\(s\),/],
    [() => 1, 'handler_error', /threw a function,/],
    [{ message: 'like an error' }, 'handler_error', 'like an error'],
    [{ status: 500 }, 'handler_error', /threw {"status":500},/],
    [hostile, 'handler_error', /cannot be read/],
    [unreadable, 'handler_error', /cannot be read/],
    [new Error('\u001b[31mred\u001b[0m\u0000 bell\u0007'), 'handler_error', 'red  bell '],
    [new Error('half \ud800 pair'), 'handler_error', 'half \ufffd pair'],
    [new Error('two\nlines'), 'handler_error', 'two\nlines'],
  ]
  for (const [thrown, code, message] of cases)
    t.match(outcomeOfThrow(thrown), { kind: 'failed', error: { code, message } })
})

t.test('the detail has the stacks of the causes and nothing else of the error', async t => {
  const secret = Object.assign(new Error('request failed'), {
    config: { headers: { authorization: 'Bearer secret' } },
  })
  const outcome = outcomeOfThrow(new Error('upload failed', { cause: secret }))
  t.match(outcome, {
    error: { message: 'upload failed', detail: /upload failed[\s\S]*Caused by: Error: request failed/ },
  })
  t.notMatch(JSON.stringify(outcome), /secret/)
  const loop = new Error('loop')
  loop.cause = loop
  t.match(outcomeOfThrow(loop), { error: { message: 'loop' } })
})

t.test('long texts are cut', async t => {
  const error = new Error('x'.repeat(1_000_000))
  const outcome = outcomeOfThrow(error)
  t.ok(JSON.stringify(outcome).length < 25_000)
  t.match(outcome, { error: { message: /^x+…$/, detail: /^Error: x+…$/ } })
})

t.test('a failure says whether and when to try again', async t => {
  const cases: [unknown, retryable: boolean, retryAfterMs: number | null][] = [
    [new Error('x'), true, null],
    [new PermanentError('x'), false, null],
    [new RetryLater('x', { afterMs: 1_500.4 }), true, 1_500],
    [new RetryLater('x', { afterMs: 0 }), true, 1],
    [new RetryLater('x', { afterMs: Number.NaN }), true, null],
    [new RetryLater('x', { afterMs: 1e15 }), true, 366 * 24 * 60 * 60 * 1_000],
  ]
  for (const [thrown, retryable, retryAfterMs] of cases)
    t.match(outcomeOfThrow(thrown), { retryable, retryAfterMs })
})

t.test('a result is JSON of a bounded size and depth, or the task fails for good', async t => {
  const cases: [unknown, string][] = [
    [() => 1, 'result_not_json'],
    [Symbol('s'), 'result_not_json'],
    [{ toJSON: () => Promise.reject.call(null) }, 'result_not_json'],
    ['x'.repeat(256 * 1024 - 1), 'result_too_large'],
    ['é'.repeat(128 * 1024), 'result_too_large'],
    [JSON.parse('['.repeat(65) + ']'.repeat(65)), 'result_too_deep'],
    [JSON.parse('['.repeat(100_000) + ']'.repeat(100_000)), 'result_not_json'],
  ]
  for (const [returned, code] of cases)
    t.match(outcomeOfReturn(returned), { kind: 'failed', retryable: false, error: { code } })
  t.match(outcomeOfReturn(JSON.parse('['.repeat(64) + ']'.repeat(64))), { kind: 'succeeded' })
})

t.test('brackets in strings are no depth', async t => {
  const text = `${'[{'.repeat(100)}"\\${'['.repeat(100)}`
  t.strictSame(encodeJson({ text }, 10_000), { text: JSON.stringify({ text }) })
})
