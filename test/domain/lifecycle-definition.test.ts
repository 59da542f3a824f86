import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import t from 'tap'
import { canonicalJson } from '../../src/domain/canonical-json.ts'
import type { Json } from '../../src/domain/events.ts'
import {
  eventFits,
  lifecycleSchema,
  mayEnterStep,
  STANDARD_LIFECYCLE,
  STATUSES,
  stepLimitMs,
  TRANSITION_EVENTS,
  TRIGGERS,
  transition,
} from '../../src/domain/lifecycle.ts'
import { STEPPED_LIFECYCLE } from './specification.ts'

/** A definition as a configuration file would hold it, free to be broken. */
// biome-ignore lint/suspicious/noExplicitAny: the cases break the shape on purpose.
type Loose = any
const standard = (): Loose => JSON.parse(JSON.stringify(STANDARD_LIFECYCLE))

/** Messages a definition is refused with, empty where it is accepted. */
const faultsOf = (definition: unknown): string[] => {
  const parsed = lifecycleSchema.safeParse(definition)
  return parsed.success ? [] : parsed.error.issues.map(issue => issue.message)
}

t.test('the standard lifecycle is accepted', async t => {
  t.strictSame(faultsOf(standard()), [])
})

t.test('the standard lifecycle is the one that stored tasks are pinned to', async t => {
  // A change here is a new version of the lifecycle, beside the old one: tasks under way keep the definition
  // they were submitted with, found by this hash.
  const stored = readFileSync(new URL('../fixtures/lifecycles/standard-1.json', import.meta.url), 'utf8')
  const now = canonicalJson(STANDARD_LIFECYCLE as unknown as Json)
  t.equal(now, canonicalJson(JSON.parse(stored)))
  t.equal(
    createHash('sha256').update(now).digest('hex'),
    'c5451791825472b27339c32a59326743f1f12355747c08e2bb5c2fd24da40650',
  )
})

/** What is wrong, how the standard lifecycle is broken so, and what the message must say. */
const REFUSED: [title: string, change: (definition: Loose) => void, message: string][] = [
  [
    'a state that cannot be reached',
    ({ states }) => {
      for (const trigger of ['FAIL', 'TIMEOUT:execution', 'TIMEOUT:step', 'TIMEOUT:lease'])
        states.PROCESSING.on[trigger] = states.PROCESSING.on[trigger].slice(1)
    },
    'RETRYING: cannot be reached from PENDING',
  ],
  [
    'an initial state that is missing',
    d => delete d.states.PENDING,
    'the initial state PENDING is not defined',
  ],
  [
    'a target that is not defined',
    d => delete d.states.RETRYING,
    'PROCESSING on FAIL: state RETRYING is not defined',
  ],
  [
    'an open state without timers',
    ({ states }) => {
      states.RETRYING.timers = []
      delete states.RETRYING.on['TIMEOUT:total']
    },
    'RETRYING: an open state needs its timers; retry is missing',
  ],
  [
    'an open state whose only timer is not certain to be armed',
    ({ states }) => {
      states.PROCESSING.timers = ['step']
      for (const timer of ['execution', 'lease', 'total']) delete states.PROCESSING.on[`TIMEOUT:${timer}`]
    },
    'PROCESSING: an open state needs its timers; lease is missing',
  ],
  [
    'a timer left out although every task carries its date',
    ({ states }) => {
      states.PENDING.timers = ['queue']
      delete states.PENDING.on['TIMEOUT:total']
    },
    'PENDING: an open state needs its timers; total is missing',
  ],
  [
    'a timer that nothing answers',
    d => delete d.states.PENDING.on['TIMEOUT:queue'],
    'PENDING: nothing answers its timer queue',
  ],
  [
    'the timer retry without RETRY',
    d => delete d.states.RETRYING.on.RETRY,
    'RETRYING: nothing answers its timer retry',
  ],
  [
    'a timer where its date does not exist',
    d => d.states.PENDING.timers.push('lease'),
    'PENDING: the timer lease cannot be armed here',
  ],
  [
    'a TIMEOUT that is answered without its timer',
    ({ states }) => {
      states.PROCESSING.timers = states.PROCESSING.timers.filter((timer: string) => timer !== 'step')
    },
    'PROCESSING: TIMEOUT:step is answered but its timer is not armed',
  ],
  [
    'a timer that does not leave its state',
    d => {
      d.states.PENDING.on['TIMEOUT:queue'] = [{ to: 'PENDING', event: 'TaskNoted' }]
    },
    'PENDING: its timer queue does not leave it',
  ],
  [
    'open states from which no final one is reached',
    d => {
      d.states = {
        PENDING: { timers: [], on: { START: [{ to: 'PROCESSING', event: 'TaskStarted' }] } },
        PROCESSING: { timers: [], on: { RELEASE: [{ to: 'PENDING', event: 'TaskReleased' }] } },
      }
    },
    'PROCESSING: no final state can be reached from it',
  ],
  [
    'a last target with a guard',
    d => d.states.PROCESSING.on.FAIL.pop(),
    'PROCESSING on FAIL: the last target must be unconditional',
  ],
  [
    'an unconditional target before the last',
    d => d.states.PROCESSING.on.FAIL.reverse(),
    'PROCESSING on FAIL: a target behind an unconditional one is never chosen',
  ],
  [
    'a retry that does not look at the attempts',
    d => {
      d.states.PROCESSING.on['TIMEOUT:lease'] = [{ to: 'RETRYING', event: 'TaskAttemptTimedOut' }]
    },
    'PROCESSING on TIMEOUT:lease: TaskAttemptTimedOut needs a guard that counts the attempts',
  ],
  [
    'an event that leads elsewhere',
    d => {
      d.states.PROCESSING.on.SUCCEED = [{ to: 'FAILED', event: 'TaskSucceeded' }]
    },
    'PROCESSING on SUCCEED: TaskSucceeded leads to SUCCESS, not FAILED',
  ],
  [
    'a note that moves the task',
    d => {
      d.states.SUCCESS.on.NOTE = [{ to: 'PENDING', event: 'TaskNoted' }]
    },
    'SUCCESS on NOTE: TaskNoted leads to SUCCESS, not PENDING',
  ],
  [
    'an event that does not answer its trigger',
    d => {
      d.states.PROCESSING.on.CANCEL = [{ to: 'SUCCESS', event: 'TaskSucceeded' }]
    },
    'PROCESSING on CANCEL: TaskSucceeded does not answer CANCEL',
  ],
  [
    'an attempt that starts again although it has ended',
    d => {
      d.states.RETRYING.on.START = [{ to: 'PROCESSING', event: 'TaskStarted' }]
    },
    'RETRYING on START: RETRYING cannot answer it',
  ],
  [
    'a second outcome for a run that has one',
    d => {
      d.states.SUCCESS.on.CANCEL = [{ to: 'CANCELLED', event: 'TaskCancelled' }]
    },
    'SUCCESS on CANCEL: SUCCESS cannot answer it',
  ],
  [
    'a success that is opened again',
    d => {
      d.states.SUCCESS.on.RETRY = [{ to: 'PENDING', event: 'TaskRequeued' }]
    },
    'SUCCESS on RETRY: SUCCESS cannot answer it',
  ],
  [
    'a running attempt that is requeued over its worker',
    d => {
      d.states.PROCESSING.on.RETRY = [{ to: 'PENDING', event: 'TaskRequeued' }]
    },
    'PROCESSING on RETRY: PROCESSING cannot answer it',
  ],
  [
    'a step that is named but not defined',
    d => {
      d.steps = { first: ['PAINT'], all: { PAINT: { next: ['VARNISH'] } } }
    },
    'step VARNISH is named but not defined',
  ],
  [
    'a first step that is not defined',
    d => {
      d.steps = { first: ['PAINT'], all: {} }
    },
    'step PAINT is named but not defined',
  ],
  [
    'a step that cannot be reached',
    d => {
      d.steps = { first: ['PAINT'], all: { PAINT: { next: [] }, VARNISH: { next: ['PAINT'] } } }
    },
    'step VARNISH cannot be reached',
  ],
  [
    'a step limit without the timer step',
    d => {
      d.steps = { first: ['PAINT'], all: { PAINT: { next: [], limitMs: 5 } } }
      d.states.PROCESSING.timers = ['execution', 'lease', 'total']
      delete d.states.PROCESSING.on['TIMEOUT:step']
    },
    'PROCESSING: a step has a limit but the timer step is not armed',
  ],
]

for (const [title, change, message] of REFUSED)
  t.test(`refused: ${title}`, async t => {
    const definition = standard()
    change(definition)
    const faults = faultsOf(definition)
    t.ok(faults.includes(message), message, { faults })
  })

t.test('every fault of a definition is named at once', async t => {
  const definition = standard()
  delete definition.states.PENDING.on['TIMEOUT:queue']
  definition.states.PROCESSING.on.FAIL.pop()
  t.ok(faultsOf(definition).length >= 2)
})

t.test('refused: what does not have the shape of a definition', async t => {
  for (const value of [
    null,
    [],
    'standard',
    {},
    { ...standard(), extra: 1 },
    { ...standard(), name: 'Standard' },
    { ...standard(), version: 0 },
    { ...standard(), version: 1.5 },
    { ...standard(), initial: 'PROCESSING' },
    { ...standard(), states: { ...standard().states, PAUSED: { timers: [], on: {} } } },
    { ...standard(), steps: { first: [], all: {} } },
    { ...standard(), steps: { first: ['paint'], all: { paint: { next: [] } } } },
  ])
    t.not(faultsOf(value).length, 0, JSON.stringify(value)?.slice(0, 60))
})

t.test('refused: a step limit out of bounds', async t => {
  for (const limitMs of [0, -1, 1.5, 2 ** 53, Number.POSITIVE_INFINITY, '10', null])
    t.not(
      faultsOf({ ...standard(), steps: { first: ['PAINT'], all: { PAINT: { next: [], limitMs } } } }).length,
      0,
      String(limitMs),
    )
})

t.test('S48 names of object prototypes are names like any other, or refused', async t => {
  const json = (text: string): Loose => JSON.parse(text)
  const withSteps = (steps: string) => ({ ...standard(), steps: json(steps) })
  for (const name of ['__proto__', 'constructor', 'toString', 'hasOwnProperty']) {
    const guarded = standard()
    guarded.states.PROCESSING.on.FAIL[0].guard = name
    t.not(faultsOf(guarded).length, 0, `guard ${name}`)
    t.not(
      faultsOf(withSteps(`{"first":["${name}"],"all":{"${name}":{"next":[]}}}`)).length,
      0,
      `step ${name}`,
    )
    t.not(faultsOf(withSteps(`{"first":["A"],"all":{"A":{"next":["${name}"]}}}`)).length, 0, `next ${name}`)
    t.equal(mayEnterStep(STEPPED_LIFECYCLE, null, name), false)
    t.equal(mayEnterStep(STEPPED_LIFECYCLE, 'DOWNLOADING', name), false)
    t.equal(stepLimitMs(STANDARD_LIFECYCLE, name), null)
  }
  t.not(faultsOf({ ...standard(), name: '__proto__' }).length, 0)
  t.strictSame(faultsOf({ ...standard(), name: 'constructor' }), [], 'a name of lower-case letters')

  const text = JSON.stringify(STANDARD_LIFECYCLE)
  const polluting = [
    text.replace('"states":{', '"states":{"__proto__":{"timers":[],"on":{}},'),
    text.replace('"on":{', '"on":{"__proto__":[{"to":"PENDING","event":"TaskNoted"}],'),
    text.replace(
      '"states":',
      '"steps":{"first":["A"],"all":{"A":{"next":[]},"__proto__":{"next":[]}}},"states":',
    ),
  ]
  for (const each of polluting) {
    const parsed = lifecycleSchema.safeParse(json(each))
    if (parsed.success) t.notMatch(JSON.stringify(parsed.data), '__proto__', 'the key is dropped')
    t.equal(Object.hasOwn(Object.prototype, 'timers'), false)
  }
})

t.test(
  'a definition may leave out what it does not want: retries, cancelling, notes, handing back',
  async t => {
    const strict = standard()
    strict.name = 'once'
    delete strict.states.RETRYING
    delete strict.states.CANCELLED
    for (const state of Object.values<Loose>(strict.states)) {
      delete state.on.CANCEL
      delete state.on.NOTE
      delete state.on.RELEASE
      for (const [trigger, targets] of Object.entries<Loose>(state.on))
        state.on[trigger] = targets.filter((target: Loose) => target.to !== 'RETRYING')
    }
    t.strictSame(faultsOf(strict), [])
  },
)

t.test('a transition takes the first target whose guard holds', async t => {
  const failing = (retryable: boolean, attemptsLeft: boolean) =>
    transition(STANDARD_LIFECYCLE, 'PROCESSING', 'FAIL', { retryable, attemptsLeft })?.event
  t.equal(failing(true, true), 'TaskAttemptFailed')
  t.equal(failing(false, true), 'TaskFailed')
  t.equal(failing(true, false), 'TaskFailed')
  t.equal(transition(STANDARD_LIFECYCLE, 'SUCCESS', 'CANCEL'), null)
})

t.test('the standard lifecycle answers with events that the fold accepts in their status', async t => {
  for (const status of STATUSES)
    for (const trigger of TRIGGERS) {
      const target = transition(STANDARD_LIFECYCLE, status, trigger)
      if (target) t.ok(eventFits(status, target.event), `${status} on ${trigger}`)
    }
  const finals = TRANSITION_EVENTS.filter(event => eventFits('SUCCESS', event))
  t.strictSame(finals, ['TaskNoted'], 'nothing but a note follows on SUCCESS')
})

t.test('steps follow the order of their definition, any order where there is none', async t => {
  t.equal(mayEnterStep(STANDARD_LIFECYCLE, 'UPLOADING', 'DOWNLOADING'), true)
  t.equal(mayEnterStep(STEPPED_LIFECYCLE, null, 'DOWNLOADING'), true)
  t.equal(mayEnterStep(STEPPED_LIFECYCLE, null, 'UPLOADING'), false)
  t.equal(mayEnterStep(STEPPED_LIFECYCLE, 'UPLOADING', 'DOWNLOADING'), false)
  t.equal(stepLimitMs(STEPPED_LIFECYCLE, 'DOWNLOADING'), 1_000)
  t.equal(stepLimitMs(STEPPED_LIFECYCLE, 'GENERATING'), null)
})
