import t from 'tap'
import { LIMITS } from '../../src/domain/limits.ts'
import {
  DEFAULT_RETRY_POLICY,
  type RetryPolicy,
  retryDelayMs,
  retryPolicySchema,
} from '../../src/domain/retry-policy.ts'

const policy = (over: Partial<RetryPolicy> = {}): RetryPolicy => ({
  maxAttempts: 2_000,
  initialDelayMs: 1_000,
  factor: 2,
  maxDelayMs: 60_000,
  jitter: 0,
  ...over,
})
const largest = 1 - Number.EPSILON

const DELAYS: [title: string, policy: RetryPolicy, charged: number, random: number, delayMs: number][] = [
  ['the first wait is the initial one', policy(), 1, 0, 1_000],
  ['each wait is longer by the factor', policy(), 2, 0, 2_000],
  ['and longer again', policy(), 4, 0, 8_000],
  ['until the cap', policy(), 7, 0, 60_000],
  ['a factor of one keeps it constant', policy({ factor: 1 }), 1_999, 0, 1_000],
  ['a broken factor is rounded to whole milliseconds', policy({ factor: 1.1 }), 4, 0, 1_331],
  ['no wait stays no wait', policy({ initialDelayMs: 0 }), 1_100, 0, 0],
  ['a cap below the initial wait holds', policy({ maxDelayMs: 10 }), 1, 0, 10],
  ['a cap of zero is no wait', policy({ maxDelayMs: 0 }), 1_100, 0.5, 0],
  ['S32 base 2, attempt 1,100: the power overflows, the wait is the cap', policy(), 1_100, 0, 60_000],
  ['S32 with jitter it is still finite', policy({ jitter: 1 }), 1_100, 0.5, 30_000],
  [
    'S32 the largest of everything',
    policy({ factor: 100, initialDelayMs: 31_622_400_000 }),
    2_000,
    0,
    60_000,
  ],
  ['jitter shortens by up to its share', policy({ jitter: 0.2 }), 1, largest, 800],
  ['jitter with a random of zero shortens nothing', policy({ jitter: 0.2 }), 1, 0, 1_000],
  ['full jitter may leave no wait', policy({ jitter: 1 }), 1, largest, 0],
]

for (const [title, given, charged, random, delayMs] of DELAYS)
  t.test(title, async t => {
    retryPolicySchema.parse(given)
    t.equal(retryDelayMs(given, charged, random), delayMs)
  })

t.test('S32 every attempt of the longest run waits a whole, finite, bounded time', async t => {
  for (const factor of [1, 1.5, 2, 10, 100])
    for (let charged = 1; charged <= LIMITS.maxAttempts; charged++) {
      const delayMs = retryDelayMs(policy({ factor, jitter: 0.5 }), charged, largest)
      if (!Number.isSafeInteger(delayMs) || delayMs < 500 || delayMs > 60_000)
        t.fail(`factor ${factor}, charged ${charged}: ${delayMs}`)
    }
})

t.test('the default policy is valid', async t => {
  t.strictSame(retryPolicySchema.parse(DEFAULT_RETRY_POLICY), DEFAULT_RETRY_POLICY)
})

t.test('a policy out of bounds is refused', async t => {
  for (const over of [
    { maxAttempts: 0 },
    { maxAttempts: 2_001 },
    { maxAttempts: 1.5 },
    { initialDelayMs: -1 },
    { initialDelayMs: 0.5 },
    { factor: 0.9 },
    { factor: 101 },
    { factor: Number.NaN },
    { maxDelayMs: Number.POSITIVE_INFINITY },
    { maxDelayMs: LIMITS.timeoutMs.max + 1 },
    { jitter: -0.1 },
    { jitter: 1.1 },
    { extra: 1 },
  ])
    t.equal(retryPolicySchema.safeParse({ ...policy(), ...over }).success, false, JSON.stringify(over))
})
