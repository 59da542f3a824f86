/** A command that goes into the log with the submit before it. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { Task } from '../../src/domain/task.ts'
import type { Answer } from '../../src/engine/answer.ts'
import type { EngineOptions } from '../../src/engine/engine.ts'
import type { FollowUp } from '../../src/engine/staged.ts'
import { eventBytes } from '../../src/eventlog/check-append.ts'
import { streamOf } from '../../src/eventlog/codec.ts'
import {
  type Append,
  EVENT_BYTES_MAX,
  type EventLog,
  LogUnavailableError,
} from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { start } from '../domain/specification.ts'
import {
  ask,
  history,
  mustBe,
  startEngine,
  submitTasks,
  submitting,
  typesOf,
  wrapLog,
} from '../support/service-parts.ts'

/** An engine that is asked to start what is submitted, the calls that its log gets, and what is told of each START. */
async function following(
  log: EventLog = createMemoryEventLog(),
  commandFor: (task: Task) => FollowUp['envelope'] | null = ({ taskId }) => ask(taskId, start()),
  options: Partial<EngineOptions> = {},
) {
  const calls: (readonly Append[])[] = []
  const told: { taskId: string; answer: Answer | null }[] = []
  const offered: string[] = []
  const engine = await startEngine(
    wrapLog(log, {
      appendMany: (appends: readonly Append[]) => {
        calls.push(appends)
        return log.appendMany(appends)
      },
    }),
    {
      followUp: task => {
        offered.push(task.taskId)
        const envelope = commandFor(task)
        return envelope && { envelope, resolve: answer => told.push({ taskId: task.taskId, answer }) }
      },
      ...options,
    },
  )
  calls.length = 0
  return { log, engine, calls, told, offered }
}

t.test('a submit and what follows it are one append, each answered for itself', async t => {
  const observed: string[] = []
  const { log, engine, calls, told } = await following(undefined, undefined, {
    observer: ({ command }, answer) => observed.push(`${command.trigger} ${answer.kind}`),
  })
  const taskId = randomUUID()
  const submitted = mustBe('accepted', await engine.execute(ask(taskId, submitting())))
  t.match(submitted, { from: null, task: { status: 'PENDING', revision: 0 } })
  t.match(told, [
    { taskId, answer: { kind: 'accepted', from: 'PENDING', task: { status: 'PROCESSING', revision: 1 } } },
  ])
  t.equal(calls.length, 1)
  t.strictSame(
    calls[0]!.map(({ stream, events }) => [stream, events.length]),
    [[streamOf(taskId), 2]],
  )
  t.strictSame(observed, ['SUBMIT accepted', 'START accepted'])
  const [first, second] = await history(log, taskId)
  t.equal(second!.metadata.prevHash, first!.hash)
  t.match(await engine.read(taskId), { task: { status: 'PROCESSING', hash: second!.hash } })
  t.match(engine.known(taskId), { status: 'PROCESSING', revision: 1 })
})

t.test('of one flight the most urgent are offered first, those of one urgency as they came', async t => {
  const { engine, offered, calls } = await following(undefined, () => null)
  const priorities = [0, 5, -3, 5, 0]
  const ids = await submitTasks(engine, priorities.length, index => ({ priority: priorities[index]! }))
  t.strictSame(
    offered,
    [1, 3, 0, 4, 2].map(index => ids[index]),
  )
  t.ok(calls[0]!.every(({ events }) => events.length === 1))
})

t.test('only submits that are accepted are offered', async t => {
  const { engine, offered } = await following(undefined, () => null)
  const [taskId] = (await submitTasks(engine, 1)) as [string]
  mustBe('repeated', await engine.execute(ask(taskId, submitting())))
  mustBe('accepted', await engine.execute(ask(taskId, start())))
  t.strictSame(offered, [taskId])
})

t.test('what cannot follow costs the submit nothing', async t => {
  const measured = await following(undefined, () => null)
  await submitTasks(measured.engine, 1, () => ({ payload: '' }))
  const room = EVENT_BYTES_MAX - eventBytes(measured.calls[0]![0]!.events[0]!)
  const cases: [string, (task: Task) => FollowUp['envelope'], string?][] = [
    ['it is refused', ({ taskId }) => ask(taskId, start({ attempt: 7 }))],
    ['it has no room beside the submit', ({ taskId }) => ask(taskId, start()), 'x'.repeat(room - 100)],
    [
      'it fails',
      ({ taskId }) => ({
        ...ask(taskId, start()),
        get actor(): never {
          throw new Error('a bug')
        },
      }),
    ],
  ]
  for (const [name, commandFor, payload] of cases) {
    const { log, engine, told } = await following(undefined, commandFor)
    const [taskId] = (await submitTasks(engine, 1, () => (payload ? { payload } : {}))) as [string]
    t.strictSame(told, [{ taskId, answer: null }], name)
    t.strictSame(await typesOf(log, taskId), ['TaskSubmitted'], name)
    mustBe('accepted', await engine.execute(ask(taskId, start())))
  }
})

t.test('a submit that finds its task there takes nothing along', async t => {
  const log = createMemoryEventLog()
  const first = await following(log, () => null)
  const taskId = randomUUID()
  const same = ask(taskId, submitting())
  mustBe('accepted', await first.engine.execute(same))
  const { engine, told } = await following(log)
  mustBe('repeated', await engine.execute(same))
  t.strictSame(told, [{ taskId, answer: null }])
  t.strictSame(await typesOf(log, taskId), ['TaskSubmitted'])
})

t.test('an append whose answer is lost is repeated whole', async t => {
  const log = createMemoryEventLog()
  let lost = 0
  const { engine, told } = await following(
    wrapLog(log, {
      appendMany: async appends => {
        const results = await log.appendMany(appends)
        if (appends.some(({ events }) => events.length > 1) && lost++ === 0)
          throw new LogUnavailableError('the answer was lost')
        return results
      },
    }),
  )
  const [taskId] = (await submitTasks(engine, 1)) as [string]
  t.equal(lost, 2)
  t.match(told, [{ taskId, answer: { kind: 'accepted', task: { revision: 1 } } }])
  t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted'])
})

t.test('where nobody knows whether it was stored, both are told so', async t => {
  const log = createMemoryEventLog()
  const { engine, told } = await following(
    wrapLog(log, {
      appendMany: async appends => {
        if (appends.some(({ events }) => events.length > 1)) throw new LogUnavailableError('the log is away')
        return log.appendMany(appends)
      },
    }),
    undefined,
    { appendDeadlineMs: 0 },
  )
  const taskId = randomUUID()
  t.match(await engine.execute(ask(taskId, submitting())), { kind: 'refused', code: 'log_unavailable' })
  t.match(told, [{ taskId, answer: { kind: 'refused', code: 'log_unavailable' } }])
})
