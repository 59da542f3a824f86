import { setTimeout as sleep } from 'node:timers/promises'
import Fastify from 'fastify'
import t from 'tap'
import type { Problem } from '../../src/api/problems.ts'
import { protect } from '../../src/api/protection.ts'
import { startGuarded } from './access-fixture.ts'
import { isProblem } from './fixture.ts'

t.test('answers tell browsers to make nothing of them', async t => {
  const { api } = await startGuarded(t)
  for (const path of ['/livez', '/v1/tasks', '/nowhere']) {
    const { headers } = await api.get(path)
    t.match(
      headers,
      {
        'content-security-policy': "default-src 'none';frame-ancestors 'none'",
        'x-content-type-options': 'nosniff',
        'x-frame-options': 'DENY',
        'referrer-policy': 'no-referrer',
        'cross-origin-resource-policy': 'same-origin',
      },
      path,
    )
    for (const name of ['access-control-allow-origin', 'strict-transport-security', 'x-powered-by', 'server'])
      t.notOk(headers[name], `${path}: ${name}`)
  }
})

t.test('each key has a rate of its own, and so has an address without one', async t => {
  const guarded = await startGuarded(t, { config: { rateLimit: 20 } })
  const { api } = guarded
  const [greedy, modest] = [await guarded.caller(), await guarded.caller()]
  // The windows begin together, and what is sent fits into one, on a slow machine as well.
  const burst = (get: () => Promise<{ status: number }>, count: number) =>
    Promise.all(Array.from({ length: count }, get))
  for (let tries = 0; ; tries++) {
    const statuses = (await burst(() => greedy.get('/v1/tasks'), 60)).map(({ status }) => status)
    if (statuses.includes(429)) {
      t.ok(statuses.includes(200))
      break
    }
    if (tries > 10) throw new Error('60 requests at once were never more than 20 in a second')
  }
  const refused = (await Promise.all(Array.from({ length: 60 }, () => greedy.get('/v1/tasks')))).find(
    ({ status }) => status === 429,
  )!
  isProblem(t, refused, 'rate_limited', /more than 20|More than 20/)
  t.match(refused.headers, { 'retry-after': '1' })
  t.equal((await modest.get('/v1/tasks')).status, 200, 'another key is not concerned')
  const strangers = await Promise.all(Array.from({ length: 60 }, () => api.get('/v1/tasks')))
  t.ok(
    strangers.some(({ status }) => status === 429),
    'who shows no key is counted by address',
  )
  for (const path of ['/livez', '/readyz']) {
    const answers = await Promise.all(Array.from({ length: 40 }, () => api.get(path)))
    t.ok(
      answers.every(({ status }) => status === 200),
      `${path} has no limit`,
    )
  }
  await sleep(1_100)
  t.equal((await greedy.get('/v1/tasks')).status, 200, 'a second later it may go on')
})

t.test('a process that stays behind says so, and one that stood still once goes on', async t => {
  // No more than that: an event loop that stands still takes a whole service many turns.
  const app = Fastify()
  t.teardown(() => app.close())
  app.setErrorHandler((error: Problem, _request, reply) => error.send(reply))
  protect(app)
  app.after(() => {
    app.get('/v1/tasks', { config: { scope: 'read' } }, async () => 'well')
    app.get('/metrics', { config: { scope: 'operate' } }, async () => 'well')
    app.get('/livez', async () => 'well')
  })
  await app.ready()
  const stall = (ms: number) => {
    const end = performance.now() + ms
    while (performance.now() < end);
    return new Promise(setImmediate)
  }
  const status = async (url: string) => (await app.inject(url)).statusCode
  t.equal(await status('/v1/tasks'), 200)
  // Of the first one the average still knows the quiet before it.
  for (let round = 0; round < 10 && !app.isUnderPressure(); round++) {
    await stall(1_200)
    await sleep(1)
  }
  t.ok(app.isUnderPressure())
  t.equal(await status('/v1/tasks'), 200, 'once is no reason')
  let refused = await app.inject('/livez')
  for (let round = 0; round < 10 && refused.statusCode === 200; round++) {
    await stall(1_200)
    await sleep(1)
    refused = await app.inject('/v1/tasks')
  }
  t.match(refused, { statusCode: 503, headers: { 'retry-after': '1' } })
  t.match(JSON.parse(refused.body), { code: 'overloaded', detail: /behind/ })
  for (const url of ['/livez', '/metrics']) t.equal(await status(url), 200, `${url} is told`)
  await sleep(1_100)
  t.equal(await status('/v1/tasks'), 200, 'it is over')
})
