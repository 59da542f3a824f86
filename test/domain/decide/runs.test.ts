import t from 'tap'
import { LIMITS } from '../../../src/domain/limits.ts'
import {
  attemptFailed,
  cancel,
  cancelled,
  ERROR,
  fail,
  failed,
  given,
  note,
  PERSON,
  queueTimedOut,
  release,
  released,
  retry,
  start,
  started,
  step,
  submit,
  submitted,
  succeed,
  succeeded,
  T0,
  TIMEOUTS,
  TIMER,
  TOKEN_A,
  timedOut,
  timeout,
} from '../specification.ts'

const running = given(submitted(), started(10))
const fenceOf = (attempt: number) => ({ attempt, leaseTokenHash: TOKEN_A })

// RETRY

t.test('RETRY of a failed task opens a new run: budget and total anew, attempts go on', async t => {
  const spec = running
    .and(attemptFailed(20))
    .when(1_020, retry(), { actor: TIMER })
    .thenAccepted(t, 'TaskRequeued')
    .when(1_030, start(fenceOf(2)))
    .thenAccepted(t, 'TaskStarted')
    .when(1_040, fail({ ...fenceOf(2), retryable: false }))
    .thenAccepted(t, 'TaskFailed')
    .when(900_000, retry('the model was repaired'))
    .thenAccepted(t, 'TaskRequeued', {
      run: 2,
      cause: 'asked',
      queueDeadlineAt: T0 + 900_000 + TIMEOUTS.queueMs,
      totalDeadlineAt: T0 + 900_000 + TIMEOUTS.totalMs,
    })
    .thenTask(t, { status: 'PENDING', run: 2, attempt: 3, attemptsCharged: 0, lastError: ERROR })
  t.strictSame(
    spec.as('PENDING').endedAttempts.map(({ attempt }) => attempt),
    [1, 2],
    'the history of the first run is kept',
  )
  spec
    .when(900_010, start(fenceOf(3)))
    .thenAccepted(t, 'TaskStarted', { run: 2, attempt: 3 })
    .when(900_020, fail(fenceOf(3)))
    .thenAccepted(t, 'TaskAttemptFailed', { run: 2 })
    .thenTask(t, { attemptsCharged: 1 })
})

t.test('RETRY twice is repeated while the task waits', async t => {
  running
    .and(failed(20))
    .when(30, retry())
    .thenAccepted(t, 'TaskRequeued')
    .when(31, retry())
    .thenRepeated(t)
    .thenTask(t, { run: 2, revision: 3 })
  running
    .and(attemptFailed(20))
    .when(30, retry())
    .thenAccepted(t, 'TaskRequeued')
    .when(31, retry(), { actor: TIMER })
    .thenRepeated(t)
    .thenTask(t, { run: 1 })
})

t.test('an attempt that nobody started keeps its number in the new run', async t => {
  given(submitted(), queueTimedOut(60_000))
    .when(61_000, retry())
    .thenAccepted(t, 'TaskRequeued', { run: 2 })
    .thenTask(t, { attempt: 1 })
    .when(61_001, start())
    .thenAccepted(t, 'TaskStarted', { run: 2, attempt: 1 })
})

t.test('an attempt that was waiting when its run ended was not started and keeps its number', async t => {
  given(submitted(), started(10), released(20), queueTimedOut(60_020, { attempt: 2 }))
    .when(61_000, retry())
    .thenAccepted(t, 'TaskRequeued')
    .thenTask(t, { run: 2, attempt: 2, releasesInRun: 0 })
})

t.test('RETRY is refused for SUCCESS, CANCELLED and a task under way', async t => {
  running.and(succeeded(20)).when(30, retry()).thenRefused(t, 'illegal_transition')
  running.and(cancelled(20)).when(30, retry()).thenRefused(t, 'illegal_transition')
  running.when(30, retry()).thenRefused(t, 'illegal_transition')
  given(submitted()).when(30, retry()).thenRefused(t, 'illegal_transition')
})

t.test('no timer reopens a failed task', async t => {
  running.and(failed(20)).when(900_000, retry(), { actor: TIMER }).thenRefused(t, 'illegal_transition')
})

t.test('the worker of the first run is fenced off in the second', async t => {
  running
    .and(timedOut(2_010))
    .when(3_000, retry())
    .thenAccepted(t, 'TaskRequeued')
    .when(3_010, start({ attempt: 2, leaseTokenHash: 'b'.repeat(64) }))
    .thenAccepted(t, 'TaskStarted')
    .when(3_020, succeed())
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .when(3_030, step('UPLOADING'))
    .thenRefused(t, 'stale_attempt')
    .thenTask(t, { status: 'PROCESSING', run: 2, attempt: 2 })
})

// RELEASE

t.test('RELEASE hands the task back without charge, under the next number', async t => {
  running
    .when(20, release({ reason: 'shutting down' }))
    .thenAccepted(t, 'TaskReleased', { content: { reason: 'shutting down' } })
    .thenTask(t, { status: 'PENDING', attempt: 2, attemptsCharged: 0, releasesInRun: 1 })
})

t.test('RELEASE twice is repeated, also once another worker has started', async t => {
  running
    .when(20, release())
    .thenAccepted(t, 'TaskReleased')
    .when(21, release())
    .thenRepeated(t)
    .when(22, start(fenceOf(2)))
    .thenAccepted(t, 'TaskStarted')
    .when(23, release())
    .thenRepeated(t)
    .thenTask(t, { status: 'PROCESSING', attempt: 2 })
})

t.test('a run is handed back at most ten times; a new run may be again', async t => {
  let spec = given(submitted())
  for (let attempt = 1; attempt <= LIMITS.releasesPerRun; attempt++)
    spec = spec.and(started(attempt * 10, fenceOf(attempt)), released(attempt * 10 + 1, { attempt }))
  const eleventh = LIMITS.releasesPerRun + 1
  spec
    .when(500, start(fenceOf(eleventh)))
    .thenAccepted(t, 'TaskStarted')
    .when(501, release(fenceOf(eleventh)))
    .thenRefused(t, 'release_limit')
    .thenTask(t, { status: 'PROCESSING', attemptsCharged: 0 })
    .when(502, fail({ ...fenceOf(eleventh), retryable: false }))
    .thenAccepted(t, 'TaskFailed')
    .when(503, retry())
    .thenAccepted(t, 'TaskRequeued')
    .when(504, start(fenceOf(eleventh + 1)))
    .thenAccepted(t, 'TaskStarted')
    .when(505, release(fenceOf(eleventh + 1)))
    .thenAccepted(t, 'TaskReleased')
})

// CANCEL

t.test('CANCEL ends any open task and keeps who and why', async t => {
  for (const open of [given(submitted()), running, running.and(attemptFailed(20))])
    open
      .when(30, cancel('wrong picture'))
      .thenAccepted(t, 'TaskCancelled')
      .thenTask(t, { status: 'CANCELLED', cancelledBy: PERSON, reason: 'wrong picture', finishedAt: T0 + 30 })
})

t.test('CANCEL twice is repeated; the first reason stands', async t => {
  running
    .when(20, cancel('first'))
    .thenAccepted(t, 'TaskCancelled')
    .when(21, cancel('second'))
    .thenRepeated(t)
    .thenTask(t, { reason: 'first' })
})

t.test('CANCEL of a task that succeeded or failed is refused', async t => {
  running.and(succeeded(20)).when(30, cancel()).thenRefused(t, 'task_finished')
  running.and(failed(20)).when(30, cancel()).thenRefused(t, 'task_finished')
})

// NOTE

t.test('NOTE is taken in every status and changes none', async t => {
  for (const spec of [
    given(submitted()),
    running,
    running.and(attemptFailed(20)),
    running.and(succeeded(20)),
    running.and(failed(20)),
    running.and(cancelled(20)),
  ]) {
    const before = spec.task!
    const after = spec.when(30, note('nice')).thenAccepted(t, 'TaskNoted', { content: { note: 'nice' } })
      .task!
    t.strictSame(after, {
      ...before,
      notes: 1,
      revision: after.revision,
      hash: after.hash,
      updatedAt: T0 + 30,
      recentCommands: after.recentCommands,
    })
  }
})

t.test('a task takes a bounded number of notes', async t => {
  let spec = given(submitted())
  for (let index = 0; index < LIMITS.notesPerTask; index++) spec = spec.when(1, note()).after
  spec.thenTask(t, { notes: LIMITS.notesPerTask }).when(2, note()).thenRefused(t, 'too_many_notes')
})

// Asked twice, If-Match

t.test('any command with a command id seen before is repeated, whatever became of the task', async t => {
  const commands = [note(), cancel(), step('UPLOADING'), succeed(), fail(), release(), timeout('lease')]
  for (const command of commands)
    running
      .when(2_010, command, { commandId: 'one' })
      .after.when(2_011, command, { commandId: 'one' })
      .thenRepeated(t)
  running
    .and(failed(20))
    .when(30, retry(), { commandId: 'one' })
    .thenAccepted(t, 'TaskRequeued')
    .when(40, start(fenceOf(2)))
    .thenAccepted(t, 'TaskStarted')
    .when(50, retry(), { commandId: 'one' })
    .thenRepeated(t)
})

t.test(
  'a command id under another text is refused, by what was written and not by what it was about',
  async t => {
    const long = 'x'.repeat(10_000)
    for (const [first, other] of [
      [note('one'), note('two')],
      [note(long), note(`${long}y`)],
      [note('ab'), note('ba')],
      [cancel(), cancel('why')],
      [cancel('why'), cancel()],
      [cancel(''), cancel()],
    ] as const) {
      const spec = running.when(20, first, { commandId: 'one' }).after
      spec.when(30, other, { commandId: 'one' }).thenRefused(t, 'idempotency_key_reused')
      spec.when(30, first, { commandId: 'one' }).thenRepeated(t)
    }
    const again = running.and(failed(20)).when(30, retry('mended'), { commandId: 'one' }).after
    again.when(40, retry(), { commandId: 'one' }).thenRefused(t, 'idempotency_key_reused')
    again.when(40, note('mended'), { commandId: 'one' }).thenAccepted(t, 'TaskNoted')
    // An id may begin as another one does.
    running
      .when(20, note('one'), { commandId: 'id-1' })
      .after.when(30, note('two'), { commandId: 'id-11' })
      .thenAccepted(t, 'TaskNoted')
  },
)

t.test('a refused command is not remembered: asked again it is decided again', async t => {
  given(submitted(0, { runAt: T0 + 100 }))
    .when(50, timeout('queue'), { commandId: 'one' })
    .thenRefused(t, 'not_due')
    .when(100 + TIMEOUTS.queueMs, timeout('queue'), { commandId: 'one' })
    .thenAccepted(t, 'TaskTimedOut')
})

t.test('a task remembers its last sixteen command ids', async t => {
  let spec = given(submitted())
  for (let index = 0; index <= LIMITS.rememberedCommands; index++)
    spec = spec.when(1, note(), { commandId: `note-${index}` }).thenAccepted(t, 'TaskNoted')
  t.equal(spec.as('PENDING').recentCommands.length, LIMITS.rememberedCommands)
  spec.when(2, note(), { commandId: 'note-1' }).thenRepeated(t)
  spec.when(2, note(), { commandId: 'note-0' }).thenAccepted(t, 'TaskNoted')
})

t.test('If-Match with another revision is refused, with the right one accepted', async t => {
  running.when(20, cancel(), { ifRevision: 0 }).thenRefused(t, 'revision_mismatch')
  running.when(20, cancel(), { ifRevision: 2 }).thenRefused(t, 'revision_mismatch')
  running.when(20, cancel(), { ifRevision: 1 }).thenAccepted(t, 'TaskCancelled')
})

t.test('If-Match does not stand in the way of the same command sent again', async t => {
  running
    .when(20, cancel(), { ifRevision: 1, commandId: 'one' })
    .thenAccepted(t, 'TaskCancelled')
    .when(21, cancel(), { ifRevision: 1, commandId: 'one' })
    .thenRepeated(t)
})

t.test('the fingerprint and not the command id tells whether a SUBMIT is the same', async t => {
  given(submitted())
    .when(1, submit(), { commandId: 'another' })
    .thenRepeated(t)
    .when(1, submit({ fingerprint: '1'.repeat(64) }))
    .thenRefused(t, 'idempotency_key_reused')
})
