/** What a worker does while nothing is wrong with the network. */
import t from 'tap'
import {
  CancelledError,
  createWorker,
  done,
  type HandlerContext,
  PermanentError,
  RetryLater,
  type RollcallError,
  type Task,
} from '../../src/sdk/worker.ts'
import { aborted, eventTypes, finished, gate, startFixture, until } from './fixture.ts'

t.test('a task is claimed, handled and answered', async t => {
  const { client, worker } = await startFixture(t)
  const seen: Task<unknown>[] = []
  const images = worker({
    'image.generate': async (task: Task<{ prompt: string }>) => {
      seen.push(task)
      return done({ words: task.payload.prompt.length }, { resultUrl: 'https://images.example/1.png' })
    },
  })
  const submitted = await client.submit({
    type: 'image.generate',
    payload: { prompt: 'a red fox' },
    labels: { team: 'design' },
  })
  t.equal(submitted.status, 'PENDING')
  const task = await finished(client, submitted)
  t.match(task, {
    status: 'SUCCESS',
    result: { words: 9 },
    resultUrl: 'https://images.example/1.png',
    worker: images.name,
    attempt: 1,
  })
  t.match(seen, [{ taskId: task.taskId, attempt: 1, run: 1, context: null, labels: { team: 'design' } }])
  t.strictSame(await eventTypes(client, task.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  await images.stop()
  t.match(images.counts, { claimed: 1, succeeded: 1, refused: 0, undelivered: 0 })
})

t.test('no more handlers run at once than asked for, and all tasks are done once', async t => {
  const { client, worker, proxy } = await startFixture(t)
  let running = 0
  let most = 0
  const runs = new Map<string, number>()
  const many = worker(
    {
      'load.test': async (task: Task<number>) => {
        most = Math.max(most, ++running)
        runs.set(task.taskId, (runs.get(task.taskId) ?? 0) + 1)
        await new Promise(resolve => setTimeout(resolve, task.payload))
        running--
      },
    },
    { concurrency: 3 },
  )
  const results = await client.submitBatch(
    Array.from({ length: 60 }, (_, index) => ({ type: 'load.test', payload: index % 7 })),
  )
  const taskIds = results.flatMap(result => (result.kind === 'refused' ? [] : [result.taskId]))
  t.equal(taskIds.length, 60)
  const tasks = await Promise.all(taskIds.map(taskId => finished(client, { taskId })))
  t.ok(tasks.every(task => task.status === 'SUCCESS'))
  t.equal(most, 3)
  t.ok([...runs.values()].every(count => count === 1))
  t.ok(proxy.bodies('/v1/workers/claim').every(claim => (claim.max as number) <= 3))
  await until('all are counted', () => many.counts.succeeded === 60)
})

t.test('one slow task does not keep the other slots idle', async t => {
  const { client, worker } = await startFixture(t)
  const slow = gate()
  worker({ slow: () => slow.opened, quick: () => 'done' }, { concurrency: 2 })
  const waiting = await client.submit({ type: 'slow' })
  for (let round = 0; round < 5; round++) {
    const task = await finished(client, await client.submit({ type: 'quick' }))
    t.equal(task.status, 'SUCCESS')
  }
  t.equal((await client.get(waiting.taskId)).status, 'PROCESSING')
  slow.open()
  t.equal((await finished(client, waiting)).status, 'SUCCESS')
})

t.test('steps and progress arrive while the handler works; the context reaches the next attempt', async t => {
  const { client, worker } = await startFixture(t)
  const go = gate()
  const contexts: unknown[] = []
  worker({
    'video.transcode': async (task: Task<unknown>, context: HandlerContext) => {
      contexts.push(task.context)
      if (task.attempt > 1) return 'resumed'
      await context.step('DOWNLOADING')
      await context.step('GENERATING', { frame: 120 })
      context.progress(0.25)
      await go.opened
      context.save({ frame: 240 })
      throw new Error('the disk is full')
    },
  })
  const submitted = await client.submit({ type: 'video.transcode', retry: { initialDelayMs: 0 } })
  const shown = await until('progress is shown', async () => {
    const task = await client.get(submitted.taskId)
    return task.progress === 0.25 && task
  })
  t.equal(shown.step, 'GENERATING')
  go.open()
  const task = await finished(client, submitted)
  t.match(task, { status: 'SUCCESS', result: 'resumed', attempt: 2 })
  t.strictSame(contexts, [null, { frame: 240 }])
})

t.test('a step with a wrong name rejects, and one nobody awaits does no harm', async t => {
  const { client, worker, log } = await startFixture(t)
  worker({
    wrong: async (_: unknown, context: HandlerContext) => {
      void context.step('not a step')
      const error = await context.step('lower').then(
        () => null,
        (error: RollcallError) => error,
      )
      return error?.code ?? 'no error'
    },
  })
  const task = await finished(client, await client.submit({ type: 'wrong' }))
  t.equal(task.result, 'invalid_request')
  t.ok(log.some(line => line.message === 'a step was refused' && line.step === 'not a step'))
})

t.test('what a handler throws decides what becomes of the task', async t => {
  const { client, worker } = await startFixture(t)
  const cases: Record<string, { handle: () => unknown; is: object }> = {
    error: {
      handle: () => Promise.reject(new TypeError('no such colour')),
      is: { errorCode: 'TypeError', errorMessage: 'no such colour' },
    },
    sync: {
      handle: () => {
        throw new Error('at once')
      },
      is: { errorCode: 'handler_error', errorMessage: 'at once' },
    },
    permanent: {
      handle: () => {
        throw new PermanentError('the prompt is not allowed', { code: 'prompt_refused' })
      },
      is: { errorCode: 'prompt_refused', errorMessage: 'the prompt is not allowed', attempt: 1 },
    },
    nothing: {
      handle: () => Promise.reject(undefined),
      is: { errorMessage: 'The handler threw undefined, which is not an Error.' },
    },
    text: { handle: () => Promise.reject('just words'), is: { errorMessage: 'just words' } },
    bigint: {
      handle: () => ({ id: 10n }),
      is: { errorCode: 'result_not_json', errorMessage: /cannot be stored: it is not JSON/, attempt: 1 },
    },
    cyclic: {
      handle: () => {
        const cycle: Record<string, unknown> = {}
        cycle.self = cycle
        return cycle
      },
      is: { errorCode: 'result_not_json', attempt: 1 },
    },
    large: { handle: () => 'x'.repeat(256 * 1024), is: { errorCode: 'result_too_large', attempt: 1 } },
    deep: {
      handle: () => JSON.parse('['.repeat(70) + ']'.repeat(70)),
      is: { errorCode: 'result_too_deep', attempt: 1 },
    },
    url: {
      handle: () => done(1, { resultUrl: 'javascript:alert(1)' }),
      is: { errorCode: 'result_url_invalid' },
    },
    inexact: {
      handle: () => 2 ** 60,
      is: { errorCode: 'result_refused', errorMessage: /cannot be kept exactly/ },
    },
    prototype: {
      handle: () => JSON.parse('{"__proto__":{"admin":true}}'),
      is: { errorCode: 'result_refused', errorMessage: /__proto__/ },
    },
  }
  worker(Object.fromEntries(Object.entries(cases).map(([type, { handle }]) => [type, handle])))
  await Promise.all(
    Object.entries(cases).map(async ([type, { is }]) => {
      const submitted = await client.submit({ type, retry: { maxAttempts: 2, initialDelayMs: 0 } })
      const task = await finished(client, submitted)
      t.match(task, { status: 'FAILED', ...is }, type)
    }),
  )
})

t.test('results of all kinds arrive as they are', async t => {
  const { client, worker } = await startFixture(t)
  const limit = 'x'.repeat(256 * 1024 - 2)
  const results: Record<string, [returned: unknown, stored: unknown]> = {
    nothing: [undefined, null],
    zero: [0, 0],
    text: ['naïve \u0000 \ud83d\ude00', 'naïve \u0000 \ud83d\ude00'],
    nested: [{ list: [1, null, { deep: true }] }, { list: [1, null, { deep: true }] }],
    date: [new Date(0), '1970-01-01T00:00:00.000Z'],
    limit: [limit, limit],
  }
  worker(Object.fromEntries(Object.entries(results).map(([type, [returned]]) => [type, () => returned])))
  await Promise.all(
    Object.entries(results).map(async ([type, [, stored]]) => {
      const task = await finished(client, await client.submit({ type }))
      t.equal(task.status, 'SUCCESS', type)
      t.strictSame(task.result, stored, type)
    }),
  )
})

t.test('RetryLater decides when the next attempt may come', async t => {
  const { client, worker } = await startFixture(t)
  worker({
    limited: (task: Task<unknown>) => {
      if (task.attempt === 1) throw new RetryLater('rate limited', { afterMs: 1_200, code: 'rate_limited' })
      return 'in'
    },
  })
  const submitted = await client.submit({ type: 'limited', retry: { initialDelayMs: 0 } })
  const task = await finished(client, submitted)
  const { events } = await client.history(submitted.taskId)
  const failed = events.find(event => event.type === 'TaskAttemptFailed')!
  const requeued = events.find(event => event.type === 'TaskRequeued')!
  t.ok(Date.parse(requeued.at) - Date.parse(failed.at) >= 1_200)
  t.match(task, { status: 'SUCCESS', attempt: 2 })
})

t.test('a cancelled task aborts its handler, and nothing is reported for it', async t => {
  const { client, worker, proxy } = await startFixture(t)
  const started = gate()
  const reasons: unknown[] = []
  const images = worker({
    slow: async (_: unknown, { signal }: HandlerContext) => {
      started.open()
      await aborted(signal).catch(reason => reasons.push(reason))
      return 'too late'
    },
  })
  // The worker hears of it with its next heartbeat, a third of the lease later at most.
  const submitted = await client.submit({ type: 'slow', timeouts: { leaseMs: 900 } })
  await started.opened
  await client.cancel(submitted.taskId, { reason: 'changed my mind' })
  await until('the handler was aborted', () => images.counts.cancelled === 1)
  t.ok(reasons[0] instanceof CancelledError)
  t.match(reasons, [{ name: 'CancelledError', reason: 'changed my mind' }])
  await images.stop()
  t.equal((await client.get(submitted.taskId)).status, 'CANCELLED')
  t.strictSame(proxy.bodies('/v1/workers/report'), [])
  t.strictSame(await eventTypes(client, submitted.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskCancelled'])
})

t.test('a handler that outlives many leases keeps its task', async t => {
  const { client, worker } = await startFixture(t)
  worker({ long: () => new Promise(resolve => setTimeout(() => resolve('kept'), 2_500)) })
  const task = await finished(client, await client.submit({ type: 'long', timeouts: { leaseMs: 600 } }))
  t.match(task, { status: 'SUCCESS', result: 'kept', attempt: 1 })
})

t.test('one heartbeat speaks for all tasks, and progress does not flood the service', async t => {
  const { client, worker, proxy } = await startFixture(t)
  const made = worker(
    {
      busy: async (_: unknown, { progress }: HandlerContext) => {
        for (let done = 0; done <= 100; done++) {
          progress(done / 100)
          await new Promise(resolve => setTimeout(resolve, 10))
        }
      },
    },
    { concurrency: 40 },
  )
  await client.submitBatch(Array.from({ length: 40 }, () => ({ type: 'busy', timeouts: { leaseMs: 900 } })))
  await until('all are done', () => made.counts.succeeded === 40)
  const beats = proxy.bodies('/v1/workers/heartbeat').map(({ beats }) => beats as { progress: number }[])
  t.ok(beats.length >= 3 && beats.length < 40, `${beats.length} requests`)
  t.ok(beats.some(members => members.length > 20))
  t.ok(beats.flat().every(({ progress }) => progress === undefined || (progress >= 0 && progress <= 1)))
})

t.test('progress that is no fraction does no harm', async t => {
  const { client, worker } = await startFixture(t)
  const go = gate()
  worker({
    odd: async (_: unknown, { progress }: HandlerContext) => {
      for (const fraction of [Number.NaN, -3, 7, '1' as never, undefined as never]) progress(fraction)
      await go.opened
    },
  })
  const submitted = await client.submit({ type: 'odd' })
  await until(
    'the last that made sense is shown',
    async () => (await client.get(submitted.taskId)).progress === 1,
  )
  go.open()
  t.equal((await finished(client, submitted)).status, 'SUCCESS')
})

t.test('a worker that does not wait at the service does not ask without pause', async t => {
  const { client, worker, proxy } = await startFixture(t)
  worker({ rare: () => 'found' }, { waitMs: 0 })
  for (let claims = 0; claims < 6; claims++) await proxy.next('/v1/workers/claim')
  const began = performance.now()
  await proxy.next('/v1/workers/claim')
  t.ok(performance.now() - began > 200)
  t.match(await finished(client, await client.submit({ type: 'rare' })), { result: 'found' })
})

t.test('a context that cannot be kept is an error where it is given', async t => {
  const { client, worker } = await startFixture(t)
  worker({
    large: async (_: unknown, { save, step }: HandlerContext) => {
      const context = 'x'.repeat(17_000)
      const code = (error: RollcallError) => error.code
      const stepped = await step('READING', context).then(() => 'kept', code)
      try {
        save(10n)
        return [stepped]
      } catch (error) {
        return [stepped, code(error as RollcallError)]
      }
    },
  })
  const task = await finished(client, await client.submit({ type: 'large' }))
  t.strictSame(task.result, ['context_too_large', 'context_not_json'])
})

t.test('options that cannot be meant fail where the worker is made', async t => {
  const types = { ok: () => null }
  const url = 'http://127.0.0.1:1'
  const wrong: [object, RegExp][] = [
    [{ url: 'nonsense', types }, /url must be an address/],
    [{ url: 'ftp://host', types }, /must begin with http/],
    [{ url: 'http://user:secret@host', types }, /must not contain a user/],
    [{ url, types: {} }, /types must name 1 to 32/],
    [{ url, types: { 'Not A Type': () => null } }, /is no task type/],
    [{ url, types: { ok: 'no function' } }, /must be a function/],
    [{ url, types, concurrency: 0 }, /concurrency must be a whole number/],
    [{ url, types, worker: 'line\nbreak' }, /worker must be/],
    [{ url, types, drainMs: -1 }, /drainMs/],
    [{ url, types, waitMs: 60_000 }, /waitMs/],
  ]
  for (const [options, message] of wrong)
    t.throws(() => createWorker(options as never), { name: 'TypeError', message })
})
