import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import type { CommandEnvelope } from '../../src/domain/commands.ts'
import type { Answer } from '../../src/engine/answer.ts'
import { streamOf } from '../../src/eventlog/codec.ts'
import type { AppendResult } from '../../src/eventlog/event-log.ts'
import { EventHandling, type Handled } from '../../src/workers/event-handling.ts'
import { hashToken } from '../../src/workers/worker-events.ts'
import { cancel, retry } from '../domain/specification.ts'
import { anEvent as anyEvent } from '../support/events.ts'
import {
  ask,
  history,
  mustBe,
  openParts,
  type Parts,
  type PartsOptions,
  startParts,
  submitTasks,
  submitting,
  typesOf,
  wrapLog,
} from '../support/service-parts.ts'
import { anEvent, OTHER_TOKEN, recordOf, says } from './worker-event-records.ts'

/** Refusals as they would be kept with their tasks. */
type Kept = { taskId: string; trigger: string; code: string }

async function handling(t: Test, options: PartsOptions = {}) {
  const kept: Kept[] = []
  const observer = ({ taskId, command }: CommandEnvelope, answer: Answer) => {
    if (answer.kind === 'refused') kept.push({ taskId, trigger: command.trigger, code: answer.code })
  }
  const parts = await startParts(t, { ...options, engine: { observer, ...options.engine } })
  const { engine, leases } = parts
  const subject = new EventHandling(engine, leases)
  return {
    ...parts,
    kept,
    subject,
    handle: async (...records: Parameters<EventHandling['handle']>[0]) =>
      (await subject.handle(records)).map(word),
    /** Ends the attempt that runs and makes the next one wait. */
    requeue: async (taskId: string, attempt = 1) => {
      const outcomes = await subject.handle([
        says(taskId, 'FAIL', { attempt, error: { message: 'x' }, retryAfterMs: 0 }),
      ])
      if (word(outcomes[0]!) !== 'accepted') throw new Error(word(outcomes[0]!))
      mustBe('accepted', await engine.execute(ask(taskId, retry())))
    },
  }
}

const word = (outcome: Handled): string => {
  if (outcome.kind === 'done') return outcome.code ?? outcome.answer
  return `${outcome.kind} ${outcome.kind === 'dead' ? outcome.fault.code : outcome.code}`
}

const one = async ({ engine }: Parts): Promise<string> => (await submitTasks(engine, 1))[0]!

t.test('every trigger, in the order of the batch', async t => {
  const parts = await handling(t)
  const { handle, log, leases, task } = parts
  const taskId = await one(parts)
  t.strictSame(
    await handle(
      says(taskId, 'START'),
      says(taskId, 'PROGRESS', { progress: 0.25 }),
      says(taskId, 'STEP', { step: 'UPLOADING', context: { part: 3 } }),
      says(taskId, 'HEARTBEAT'),
      says(taskId, 'RELEASE', { reason: 'shutdown', context: { part: 4 } }),
      says(taskId, 'START', { attempt: 2 }),
      says(taskId, 'FAIL', { attempt: 2, error: { code: 'e', message: 'm', detail: 'd' }, retryAfterMs: 5 }),
    ),
    ['accepted', 'signal', 'accepted', 'signal', 'accepted', 'accepted', 'accepted'],
  )
  t.strictSame(await typesOf(log, taskId), [
    'TaskSubmitted',
    'TaskStarted',
    'TaskStepEntered',
    'TaskReleased',
    'TaskStarted',
    'TaskAttemptFailed',
  ])
  t.match(await task(taskId), { status: 'RETRYING', context: { part: 4 }, lastError: { detail: 'd' } })
  const succeeded = await one(parts)
  await handle(says(succeeded, 'START'), says(succeeded, 'SUCCEED', { result: '\0\ud800', resultUrl: null }))
  t.match((await history(log, succeeded)).at(-1), {
    event: { data: { content: { result: '\0\ud800', resultUrl: null } } },
    metadata: { actor: { kind: 'worker', id: 'worker-1' }, source: 'kafka' },
  })
  t.strictSame(await leases.heartbeat([]), [])
})

t.test('a trace is kept where it is one', async t => {
  const parts = await handling(t)
  const trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
  const headers: [string, string[], string | null][] = [
    ['none', [], null],
    ['a trace', [trace], trace],
    ['in capitals', [trace.toUpperCase()], null],
    ['with a line end', [`${trace}\n`], null],
    ['bytes', ['\xff\0'], null],
    ['long', [trace.repeat(1_000)], null],
    ['two: the first counts', [trace, 'other'], trace],
  ]
  for (const [what, values, kept] of headers) {
    const taskId = await one(parts)
    const given = values.map(value => ['traceparent', Buffer.from(value, 'latin1')] as const)
    await parts.handle(recordOf(anEvent(taskId, 'START'), { headers: [['a', Buffer.of(0)], ...given] }))
    t.equal((await history(parts.log, taskId)).at(-1)?.metadata.trace ?? null, kept, what)
  }
})

t.test('an outcome implies its START', async t => {
  const parts = await handling(t)
  const { handle, log, kept } = parts
  await t.test('which comes never', async t => {
    for (const [trigger, over, end] of [
      ['SUCCEED', {}, 'TaskSucceeded'],
      ['FAIL', { error: { message: 'm' } }, 'TaskAttemptFailed'],
      ['FAIL', { error: { message: 'm' }, retryable: false }, 'TaskFailed'],
    ] as const) {
      const taskId = await one(parts)
      t.strictSame(await handle(says(taskId, trigger, over)), ['accepted'])
      t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', end])
      t.match((await history(log, taskId))[1], {
        event: { data: { worker: 'worker-1', attempt: 1, leaseTokenHash: String } },
        metadata: { actor: { id: 'worker-1' }, source: 'kafka' },
      })
    }
    t.strictSame(kept, [], 'nothing was refused on the way')
  })
  await t.test('which comes later: refused, and nothing changes', async t => {
    for (const together of [true, false]) {
      const taskId = await one(parts)
      const records = [says(taskId, 'SUCCEED'), says(taskId, 'START')]
      const outcomes = together
        ? await handle(...records)
        : [...(await handle(records[0]!)), ...(await handle(records[1]!))]
      t.strictSame(outcomes, ['accepted', 'task_finished'])
      t.strictSame(await handle(...records), ['repeated', 'task_finished'], 'and again')
      t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    }
  })
  await t.test('once, however often it is said in a batch', async t => {
    const taskId = await one(parts)
    kept.length = 0
    const record = says(taskId, 'SUCCEED')
    t.strictSame(
      await handle(
        record,
        record,
        says(taskId, 'SUCCEED'),
        says(taskId, 'SUCCEED', { leaseToken: OTHER_TOKEN }),
      ),
      ['accepted', 'repeated', 'repeated', 'not_lease_holder'],
    )
    t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    t.match(kept, [{ trigger: 'SUCCEED', code: 'not_lease_holder' }])
    t.equal(kept.length, 1)
  })
  await t.test('not where it stands before it, of whomever', async t => {
    const taskId = await one(parts)
    kept.length = 0
    t.strictSame(await handle(says(taskId, 'START'), says(taskId, 'SUCCEED')), ['accepted', 'accepted'])
    t.strictSame(kept, [])
    const other = await one(parts)
    t.strictSame(await handle(says(other, 'START'), says(other, 'SUCCEED', { leaseToken: OTHER_TOKEN })), [
      'accepted',
      'not_lease_holder',
    ])
  })
  await t.test('not while the task waits for its next attempt', async t => {
    const taskId = await one(parts)
    await handle(says(taskId, 'FAIL', { error: { message: 'm' }, retryAfterMs: 60_000 }))
    const early = says(taskId, 'SUCCEED', { attempt: 2 })
    t.strictSame(await handle(early), ['unknown_attempt'])
    mustBe('accepted', await parts.engine.execute(ask(taskId, retry())))
    t.strictSame(await handle(early), ['accepted'], 'but then')
  })
  await t.test('not of another attempt, nor before its date', async t => {
    const taskId = await one(parts)
    t.strictSame(await handle(says(taskId, 'SUCCEED', { attempt: 2 })), ['unknown_attempt'])
    await parts.requeue(taskId)
    t.strictSame(await handle(says(taskId, 'STEP', { step: 'A' })), ['stale_attempt'])
    t.strictSame(await typesOf(log, taskId), [
      'TaskSubmitted',
      'TaskStarted',
      'TaskAttemptFailed',
      'TaskRequeued',
    ])
    const [delayed] = await submitTasks(parts.engine, 1, () => ({ delayMs: 60_000 }))
    kept.length = 0
    t.strictSame(await handle(says(delayed!, 'SUCCEED')), ['illegal_transition'])
    t.match(kept, [{ code: 'not_due' }, { code: 'illegal_transition' }])
  })
  await t.test('also where another process did what came before', async t => {
    const taskId = await one(parts)
    const other = await openParts(t, parts.url)
    const there = new EventHandling(other.engine, other.leases)
    await there.handle([says(taskId, 'FAIL', { error: { message: 'm' }, retryAfterMs: 0 })])
    mustBe('accepted', await other.engine.execute(ask(taskId, retry())))
    t.match(parts.engine.known(taskId), { status: 'PENDING', attempt: 1 }, 'which this one does not know')
    t.strictSame(await handle(says(taskId, 'SUCCEED', { attempt: 2 })), ['accepted'])
    kept.length = 0
    const started = await one(parts)
    await there.handle([says(started, 'START')])
    t.match(parts.engine.known(started), { status: 'PENDING' })
    t.strictSame(await handle(says(started, 'SUCCEED')), ['accepted'])
    t.strictSame(kept, [])
    const stranger = await openParts(t, parts.url)
    const unseen = await one(parts)
    t.match(await new EventHandling(stranger.engine, stranger.leases).handle([says(unseen, 'SUCCEED')]), [
      { answer: 'accepted' },
    ])
  })
  await t.test('also of a task that was retried by hand after it had failed', async t => {
    const taskId = await one(parts)
    await handle(says(taskId, 'FAIL', { error: { message: 'm' }, retryable: false }))
    mustBe('accepted', await parts.engine.execute(ask(taskId, retry())))
    t.strictSame(await handle(says(taskId, 'SUCCEED', { attempt: 2 })), ['accepted'])
  })
})

t.test('each record five times, in any order: one outcome', async t => {
  const parts = await handling(t)
  const ids = await submitTasks(parts.engine, 20)
  const records = ids.flatMap((taskId, index) => [
    says(taskId, 'START'),
    says(taskId, 'STEP', { step: 'A' }),
    says(taskId, 'PROGRESS', { progress: 0.5 }),
    index % 2 === 0
      ? says(taskId, 'SUCCEED', { result: index })
      : says(taskId, 'FAIL', { error: { message: 'm' }, retryable: false }),
  ])
  for (let round = 0; round < 5; round++) {
    const turned = [...records.slice(round * 7), ...records.slice(0, round * 7)]
    const outcomes = await parts.handle(...(round % 2 === 0 ? turned : turned.toReversed()))
    t.notOk(outcomes.some(outcome => /^(dead|passing)/.test(outcome)))
  }
  for (const [index, taskId] of ids.entries())
    t.strictSame(await typesOf(parts.log, taskId), [
      'TaskSubmitted',
      'TaskStarted',
      'TaskStepEntered',
      index % 2 === 0 ? 'TaskSucceeded' : 'TaskFailed',
    ])
})

t.test('signals', async t => {
  const parts = await handling(t)
  const { handle, rows, projector } = parts
  projector.start()
  await t.test('of a lease that this very batch makes are taken, the last progress counts', async t => {
    const taskId = await one(parts)
    const outcomes = await handle(
      says(taskId, 'PROGRESS', { progress: 0.75 }),
      says(taskId, 'HEARTBEAT'),
      says(taskId, 'START'),
      says(taskId, 'PROGRESS', { progress: 0.25 }),
      says(taskId, 'HEARTBEAT'),
    )
    t.strictSame(outcomes, ['signal', 'signal', 'accepted', 'signal', 'signal'])
    t.match(
      await rows('SELECT progress, lost, last_heartbeat_at FROM rollcall.leases WHERE task_id = $1', [
        taskId,
      ]),
      [{ progress: 0.25, lost: false, last_heartbeat_at: Date }],
    )
  })
  await t.test('for nobody, or for an attempt of another or of before, change nothing', async t => {
    const taskId = await one(parts)
    await handle(says(taskId, 'START'))
    await parts.projected()
    const outcomes = await handle(
      says(randomUUID(), 'HEARTBEAT'),
      says(randomUUID(), 'PROGRESS', { progress: 1 }),
      says(taskId, 'PROGRESS', { progress: 1, leaseToken: OTHER_TOKEN }),
      says(taskId, 'PROGRESS', { progress: 1, attempt: 2 }),
    )
    t.strictSame(outcomes, ['signal', 'signal', 'signal', 'signal'])
    t.match(await rows('SELECT progress FROM rollcall.leases WHERE task_id = $1', [taskId]), [
      { progress: null },
    ])
    t.strictSame(await typesOf(parts.log, taskId), ['TaskSubmitted', 'TaskStarted'])
  })
  await t.test('tell nobody of a cancel: whoever sent them hears nothing', async t => {
    const taskId = await one(parts)
    await handle(says(taskId, 'START'))
    mustBe('accepted', await parts.engine.execute(ask(taskId, cancel('not wanted'))))
    await parts.projected()
    t.strictSame(await handle(says(taskId, 'HEARTBEAT')), ['signal'])
    const { cancelNotice } = await parts.workState.signals(await parts.task(taskId))
    t.match(cancelNotice, { worker: 'worker-1', toldAt: null })
    await parts.leases.heartbeat([
      { taskId, attempt: 1, leaseTokenHash: hashToken(anEvent(taskId, 'START').leaseToken), progress: null },
    ])
    t.match((await parts.workState.signals(await parts.task(taskId))).cancelNotice, { toldAt: Number })
  })
})

t.test('what is refused for good is done, and kept with its task', async t => {
  const parts = await handling(t)
  const { handle, kept, log } = parts
  await t.test('a release too many', async t => {
    const taskId = await one(parts)
    for (let attempt = 1; attempt <= 10; attempt++)
      t.strictSame(await handle(says(taskId, 'START', { attempt }), says(taskId, 'RELEASE', { attempt })), [
        'accepted',
        'accepted',
      ])
    kept.length = 0
    t.strictSame(
      await handle(says(taskId, 'START', { attempt: 11 }), says(taskId, 'RELEASE', { attempt: 11 })),
      ['accepted', 'release_limit'],
    )
    t.match(kept, [{ taskId, trigger: 'RELEASE', code: 'release_limit' }])
    t.match(await parts.task(taskId), { status: 'PROCESSING', attempt: 11 })
  })
  await t.test('late results, each recorded once', async t => {
    const taskId = await one(parts)
    await handle(says(taskId, 'START'))
    mustBe('accepted', await parts.engine.execute(ask(taskId, cancel())))
    const late = says(taskId, 'SUCCEED', { result: 1 })
    t.strictSame(
      await handle(
        late,
        late,
        says(taskId, 'FAIL', { error: { message: 'm' } }),
        says(taskId, 'STEP', { step: 'A' }),
      ),
      ['superseded', 'superseded', 'superseded', 'task_finished'],
    )
    t.strictSame((await typesOf(log, taskId)).slice(2), ['TaskCancelled', 'LateResultRecorded'])
  })
  await t.test('a START of another worker', async t => {
    const taskId = await one(parts)
    t.strictSame(
      await handle(says(taskId, 'START'), says(taskId, 'START', { worker: 'w-2', leaseToken: OTHER_TOKEN })),
      ['accepted', 'already_started'],
    )
    t.match(await parts.task(taskId), { worker: 'worker-1' })
  })
})

t.test('what can never be handled', async t => {
  let answer: ((stream: string) => AppendResult | null) | null = null
  const parts = await handling(t, {
    log: log =>
      wrapLog(log, {
        appendMany: async appends => {
          const answers = appends.map(({ stream }) => answer?.(stream) ?? null)
          const rest = await log.appendMany(appends.filter((_, index) => answers[index] === null))
          return answers.map(one => one ?? rest.shift()!)
        },
      }),
  })
  const { handle, subject, log } = parts
  await t.test('no such task', async t => {
    const nobody = randomUUID()
    const outcomes = await subject.handle(
      ['START', 'STEP', 'SUCCEED', 'RELEASE'].map(trigger =>
        says(nobody, trigger, trigger === 'STEP' ? { step: 'A' } : {}),
      ),
    )
    for (const outcome of outcomes)
      t.match(outcome, {
        kind: 'dead',
        fault: { code: 'not_found', taskId: nobody, message: 'No task has this id.' },
      })
  })
  await t.test('a stream that cannot be read; others of the batch go on', async t => {
    const [broken, sound] = (await submitTasks(parts.engine, 2)) as [string, string]
    parts.cache.delete(broken)
    await log.appendMany([
      { stream: streamOf(broken), expected: 'any', events: [anyEvent({ type: 'Nonsense' })] },
    ])
    const outcomes = await subject.handle([
      says(broken, 'HEARTBEAT'),
      says(broken, 'START'),
      says(broken, 'SUCCEED'),
      says(sound, 'SUCCEED'),
    ])
    t.strictSame(outcomes.map(word), ['signal', 'dead set_aside', 'dead set_aside', 'accepted'])
    t.match(outcomes[1], { fault: { taskId: broken, message: /Nonsense/ } })
  })
  await t.test('an event that the log does not take', async t => {
    const [large, sound] = (await submitTasks(parts.engine, 2)) as [string, string]
    await handle(says(large, 'START'))
    answer = stream =>
      stream === streamOf(large) ? { kind: 'rejected', reason: 'too_large', message: 'It has 9 MB.' } : null
    const outcomes = await subject.handle([says(large, 'SUCCEED'), says(sound, 'SUCCEED')])
    t.strictSame(outcomes.map(word), ['dead too_large', 'accepted'])
    t.match(outcomes[0], { fault: { message: 'It has 9 MB.', taskId: large } })
    answer = null
  })
})

t.test('the examples of docs/worker-events.md, one after the other', async t => {
  const page = readFileSync(new URL('../../docs/worker-events.md', import.meta.url), 'utf8')
  const examples = [...page.matchAll(/^```json\n([\s\S]*?)^```$/gm)].map(([, json]) => JSON.parse(json!))
  const parts = await handling(t)
  const taskId: string = examples[0].taskId
  mustBe('accepted', await parts.engine.execute(ask(taskId, submitting())))
  const outcomes = await parts.handle(...examples.map(example => recordOf(example)))
  t.strictSame(outcomes, ['accepted', 'signal', 'accepted'])
  t.match(await parts.task(taskId), { status: 'SUCCESS', result: { width: 1024 } })
})
