import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { RollCallAnswer, VerifyAnswer } from '../../src/api/schemas/roll-call.ts'
import { createClient } from '../../src/sdk/client.ts'
import { type Answer, isProblem, startApi, until } from './fixture.ts'

const { api, service } = await startApi(t, { file: { rollCall: { graceMs: 1_234, lagBoundSeconds: 5 } } })
const { pool } = service
const client = createClient({ url: api.url })
const ids: string[] = []
for (let made = 0; made < 5; made++) ids.push((await api.submit({ type: 'called' })).taskId)
await until('they are projected', async () => {
  const { body } = await api.get<RollCallAnswer>('/v1/rollcall')
  return body.tasks === 5 && body.lag.events === 0
})

t.test('the roll call names its bounds and is the same through the client', async t => {
  const { status, body } = await api.get<RollCallAnswer>('/v1/rollcall')
  t.equal(status, 200)
  t.match(body, {
    tasks: 5,
    groups: [{ type: 'called', status: 'PENDING', count: 5, overdue: 0 }],
    unaccounted: { total: 0 },
    lag: { boundSeconds: 5 },
    graceMs: 1_234,
  })
  t.match(await client.rollCall(), { tasks: 5, unaccounted: { total: 0 } })
})

t.test('the projector verifies by itself', async t => {
  const verified = await until('a walk has ended', async () => (await client.rollCall()).verified)
  t.ok(Date.parse(verified.from) <= Date.parse(verified.at))
})

t.test('verify goes page by page, finds what differs, and repairs it when asked', async t => {
  await pool.query(`UPDATE rollcall.tasks SET priority = 77 WHERE task_id = $1`, [ids[1]])
  await pool.query(`DELETE FROM rollcall.tasks WHERE task_id = $1`, [ids[2]])
  await pool.query(`DELETE FROM rollcall.deadlines WHERE task_id = $1`, [ids[2]])
  const walk = async (repair: boolean) => {
    const findings: string[] = []
    let steps = 0
    let tasks = 0
    for (let cursor: string | null = null; steps === 0 || cursor !== null; steps++) {
      const { status, body }: Answer<VerifyAnswer> = await api.post('/v1/verify', {
        cursor,
        limit: 2,
        repair,
      })
      t.equal(status, 200)
      findings.push(...body.findings.map(one => `${one.taskId} ${one.kind} ${one.repaired}`))
      tasks += body.checked.tasks
      cursor = body.next
    }
    return { findings: findings.sort(), steps, tasks }
  }
  const expected = (repaired: boolean) =>
    [`${ids[1]} row_differs ${repaired}`, `${ids[2]} row_missing ${repaired}`].sort()
  t.strictSame(await walk(false), { findings: expected(false), steps: 3, tasks: 4 })
  const unaccounted = await until('the roll call tells', async () => {
    const { body } = await api.get<RollCallAnswer>('/v1/rollcall')
    return body.unaccounted.total === 2 && body.unaccounted
  })
  t.strictSame(
    unaccounted.reasons
      .filter(({ count }) => count > 0)
      .map(({ reason, tasks }) => [reason, tasks[0]?.taskId]),
    [
      ['not_in_read_model', ids[2]],
      ['drift', ids[1]],
    ],
  )
  t.strictSame((await walk(true)).findings, expected(true))
  t.strictSame(await walk(false), { findings: [], steps: 3, tasks: 5 })
  t.match(await api.task(ids[1]!), { priority: 0 })
  await until('all is well', async () => (await client.rollCall()).unaccounted.total === 0)
})

t.test('a row that is missed by its deadline and by the log is one finding', async t => {
  await pool.query(`DELETE FROM rollcall.tasks WHERE task_id = $1`, [ids[3]])
  const { findings } = await client.verify({ repair: true })
  t.match(findings, [{ taskId: ids[3], kind: 'row_missing', detail: /its stream begins/, repaired: true }])
  t.equal(findings.length, 1)
})

t.test('a small installation is verified in one step', async t => {
  t.match(await client.verify(), { checked: { tasks: 5, events: 6 }, findings: [], next: null })
})

t.test('cursors that no walk gave are refused, of another log too', async t => {
  const foreign = { logId: randomUUID(), position: '1', eventId: randomUUID() }
  for (const cursor of [
    'x',
    Buffer.from(JSON.stringify({ over: 'log', from: 0, at: foreign, until: foreign })).toString('base64url'),
    Buffer.from(
      JSON.stringify({ over: 'log', from: 0, at: foreign, until: { ...foreign, eventId: randomUUID() } }),
    ).toString('base64url'),
  ])
    isProblem(t, await api.post('/v1/verify', { cursor }), 'invalid_request', /cursor: is not one/)
  for (const limit of [0, 1_001, 1.5])
    isProblem(t, await api.post('/v1/verify', { limit }), 'invalid_request', /^limit: /)
})
