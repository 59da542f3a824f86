/** How a worker ends: nothing is lost, what can finish does, the rest goes back. */
import t, { type Test } from 'tap'
import { type HandlerContext, PermanentError, ShutdownError, type Task } from '../../src/sdk/worker.ts'
import { aborted, eventTypes, finished, gate, startFixture, until } from './fixture.ts'
import { startWorkerProcess } from './process.ts'

const CLAIM = '/v1/workers/claim'
const REPORT = '/v1/workers/report'
const RELEASED = ['TaskSubmitted', 'TaskStarted', 'TaskReleased']

t.test('an idle worker stops at once and leaves nothing started', async t => {
  const { client, worker, proxy } = await startFixture(t)
  const claimed = proxy.next(CLAIM)
  const made = worker({ idle: () => null })
  await claimed
  const began = performance.now()
  const stopping = made.stop()
  t.equal(made.stop(), stopping, 'asked again, the answer is the same')
  await stopping
  t.ok(performance.now() - began < 3_000)
  const { taskId } = await client.submit({ type: 'idle' })
  t.strictSame(await eventTypes(client, taskId), ['TaskSubmitted'])
  t.throws(() => made.start(), /was stopped/)
})

t.test('a worker that never started stops too', async t => {
  const { client, worker } = await startFixture(t)
  const made = worker({ idle: () => null })
  await made.stop()
  await made.stop({ drainMs: 0 })
  t.equal(made.running, 0)
  t.equal((await client.submit({ type: 'idle' })).status, 'PENDING')
})

t.test('a handler may finish while the worker drains; it is not aborted before the time is up', async t => {
  const { client, worker } = await startFixture(t)
  const started = gate()
  const go = gate()
  let wasAborted = false
  const made = worker({
    steady: async (_: unknown, { signal, step }: HandlerContext) => {
      started.open()
      await go.opened
      await step('UPLOADING')
      wasAborted = signal.aborted
      return 'finished'
    },
  })
  const submitted = await client.submit({ type: 'steady' })
  await started.opened
  const stopping = made.stop({ drainMs: 10_000 })
  go.open()
  await stopping
  t.notOk(wasAborted)
  t.match(await client.get(submitted.taskId), { status: 'SUCCESS', result: 'finished' })
  t.ok((await eventTypes(client, submitted.taskId)).includes('TaskStepEntered'))
  t.match(made.counts, { succeeded: 1, released: 0, undelivered: 0 })
})

/** Runs one handler, stops the worker while it works, and answers what became of the task. */
async function stopWhile(t: Test, handle: (context: HandlerContext) => unknown, drainMs = 100) {
  const { client, worker } = await startFixture(t)
  const started = gate()
  const made = worker({
    subject: (_: unknown, context: HandlerContext) => {
      started.open()
      return handle(context)
    },
  })
  const { taskId } = await client.submit({ type: 'subject' })
  await started.opened
  await made.stop({ drainMs })
  return { client, made, task: await client.get(taskId), events: await eventTypes(client, taskId) }
}

t.test('when the time is up the signal says so, and the task goes back uncharged', async t => {
  let reason: unknown
  const { task, events, made, client } = await stopWhile(t, async ({ signal, save }) => {
    save({ frame: 99 })
    await aborted(signal).catch(error => {
      reason = error
      throw new Error('ffmpeg was killed')
    })
  })
  t.ok(reason instanceof ShutdownError)
  t.match(task, { status: 'PENDING', attempt: 2, errorCode: null })
  t.strictSame(events, RELEASED)
  const { events: stored } = await client.history(task.taskId, { from: 2 })
  t.match(stored[0]?.data, { content: { reason: 'worker is shutting down', context: { frame: 99 } } })
  t.match(made.counts, { released: 1, failed: 0, refused: 0, undelivered: 0 })
})

t.test('a handler that returns nothing because it was told to stop has not succeeded', async t => {
  const { events } = await stopWhile(t, async ({ signal }) => {
    await aborted(signal).catch(() => {})
    if (signal.aborted) return
    return 'not reached'
  })
  t.strictSame(events, RELEASED)
})

t.test('a handler that ignores its signal is released as well', async t => {
  const began = performance.now()
  const { events, made } = await stopWhile(t, () => new Promise(() => {}), 0)
  t.strictSame(events, RELEASED)
  t.equal(made.counts.released, 1)
  t.ok(performance.now() - began < 10_000)
})

t.test('a handler that finishes in spite of the abort has its outcome', async t => {
  const { task, made } = await stopWhile(t, async ({ signal }) => {
    await aborted(signal).catch(() => {})
    return 'saved at the last moment'
  })
  t.match(task, { status: 'SUCCESS', result: 'saved at the last moment' })
  t.match(made.counts, { succeeded: 1, released: 0, refused: 0 })
})

t.test('an outcome takes the place of a release that could not be sent yet', async t => {
  const { client, worker, proxy } = await startFixture(t)
  const started = gate()
  const finish = gate()
  const made = worker(
    {
      blocked: async ({ payload }: { payload: unknown }) => {
        if (payload === 'first') return payload
        started.open()
        await finish.opened
        return 'second'
      },
    },
    { concurrency: 2 },
  )
  // The report of the first task blocks the line; the release of the second waits behind it.
  proxy.fault(REPORT, { status: 503 }, 1_000)
  const blocked = proxy.next(REPORT)
  await client.submit({ type: 'blocked', payload: 'first' })
  const second = await client.submit({ type: 'blocked', payload: 'second' })
  await Promise.all([started.opened, blocked])
  const stopping = made.stop({ drainMs: 0 })
  await new Promise(resolve => setTimeout(resolve, 1_200))
  finish.open()
  proxy.heal()
  await stopping
  t.match(await client.get(second.taskId), { status: 'SUCCESS', result: 'second' })
  t.match(made.counts, { succeeded: 2, released: 0, refused: 0 })
})

t.test('a failure that is meant is reported, shutdown or not', async t => {
  const { task } = await stopWhile(t, async ({ signal }) => {
    await aborted(signal).catch(() => {})
    throw new PermanentError('this can never work')
  })
  t.match(task, { status: 'FAILED', errorMessage: 'this can never work' })
})

t.test('tasks of a claim that was cut off are handed back', async t => {
  const { client, worker, proxy } = await startFixture(t)
  const { taskId } = await client.submit({ type: 'cut' })
  proxy.fault(CLAIM, 'hold_answer')
  const made = worker({ cut: () => 'never' })
  await until('the task is started', async () => (await client.get(taskId)).status === 'PROCESSING')
  await made.stop()
  t.strictSame(await eventTypes(client, taskId), RELEASED)
  t.match(made.counts, { claimed: 1, released: 1, succeeded: 0 })
})

t.test('a claim that is settled takes nothing new', async t => {
  const { client, worker, proxy } = await startFixture(t)
  const claim = proxy.next(CLAIM)
  const made = worker({ cut: () => 'never' })
  await claim
  // The claim was lost while it waited; work comes only after that.
  await proxy.down()
  const { taskId } = await client.submit({ type: 'cut' })
  const stopping = made.stop()
  await proxy.up()
  await stopping
  t.strictSame(await eventTypes(client, taskId), ['TaskSubmitted'])
})

t.test('stopping has an end when the service is away, and says what was not delivered', async t => {
  const { client, worker, proxy, log } = await startFixture(t)
  const started = gate()
  const go = gate()
  const made = worker({
    cut: async () => {
      started.open()
      await go.opened
    },
  })
  await client.submit({ type: 'cut' })
  await started.opened
  await proxy.down()
  const began = performance.now()
  const stopping = made.stop({ drainMs: 60_000 })
  go.open()
  await until('the handler is done', () => made.running === 0)
  made.stop({ drainMs: 0 })
  await stopping
  t.ok(performance.now() - began < 12_000)
  t.equal(made.counts.undelivered, 1)
  t.match(
    log.find(line => line.level === 'error'),
    { undelivered: 1 },
  )
})

t.test('a worker process ends in order on SIGTERM', async t => {
  const { client, proxy } = await startFixture(t)
  const { child, told, exited, started } = startWorkerProcess(t, [proxy.url, '1000'])
  const endless = await client.submit({ type: 'process.endless' })
  await started(endless.taskId)
  const quick = await client.submit({ type: 'process.quick' })
  await started(quick.taskId)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
  t.match(told.at(-1), { stopped: { succeeded: 1, released: 1, undelivered: 0 } })
  t.match(await finished(client, quick), { status: 'SUCCESS', result: 'done before the end' })
  t.strictSame(await eventTypes(client, endless.taskId), RELEASED)
})

t.test('the second signal does not wait for the drain', async t => {
  const { client, proxy } = await startFixture(t)
  const { child, exited, started } = startWorkerProcess(t, [proxy.url, '60000'])
  const endless = await client.submit({ type: 'process.endless' })
  await started(endless.taskId)
  child.kill('SIGINT')
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
  t.strictSame(await eventTypes(client, endless.taskId), RELEASED)
})

t.test('what a killed process held comes back when its lease ends', async t => {
  const { client, proxy, worker } = await startFixture(t)
  const { child, started } = startWorkerProcess(t, [proxy.url, '1000'])
  const endless = await client.submit({
    type: 'process.endless',
    timeouts: { leaseMs: 1_000 },
    retry: { initialDelayMs: 0 },
  })
  await started(endless.taskId)
  child.kill('SIGKILL')
  worker({ 'process.endless': (task: Task<unknown>) => task.attempt })
  t.match(await finished(client, endless), { status: 'SUCCESS', result: 2 })
})
