/** Server-Sent Events of all tasks that a filter names, and how they go on where they were left. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { openSse, type Sse } from '../support/sse.ts'
import { aType, isProblem, startApi, until } from './fixture.ts'

const { api, service } = await startApi(t)

const open = async (t: Test, query: string, lastEventId?: string): Promise<Sse> => {
  const sse = await openSse(
    t,
    `${api.url}/v1/events?${query}`,
    lastEventId === undefined ? {} : { 'last-event-id': lastEventId },
  )
  if (sse.status !== 200) throw new Error(`answered ${sse.status}`)
  return sse
}
const placed = (sse: Sse) => sse.until('its place', ({ event }) => event === 'place')
const seen = (sse: Sse, taskId: string, event: string) =>
  sse.until(`${event} of ${taskId}`, ({ data }) => data.event === event && taskIn(data) === taskId)
const taskIn = (data: Record<string, unknown>) => (data.task as { taskId?: string } | undefined)?.taskId
const note = (taskId: string, text: string) => api.post(`/v1/tasks/${taskId}/notes`, { note: text })

t.test('a stream tells the events of the tasks that it names, by type, label and status', async t => {
  const type = aType()
  const all = await open(t, `type=${type}`)
  const red = await open(t, `type=${type}&label.color=red`)
  const ended = await open(t, `type=${type}&status=FAILED&status=CANCELLED`)
  const both = await open(t, `type=${type}&status=CANCELLED&label.color=red&label.size=l`)
  await placed(all)
  const one = await api.submit({ type, labels: { color: 'red', size: 'l' } })
  const other = await api.submit({ type, labels: { color: 'blue' } })
  await api.submit()
  for (const { taskId } of [other, one]) await api.post(`/v1/tasks/${taskId}/cancel`)
  for (const sse of [all, red, ended, both]) await seen(sse, one.taskId, 'TaskCancelled')
  const told = (sse: Sse) =>
    sse.messages
      .filter(({ event }) => event === 'task')
      .map(({ data }) => `${taskIn(data) === one.taskId ? 'one' : 'other'} ${data.event}`)
  t.strictSame(told(all), [
    'one TaskSubmitted',
    'other TaskSubmitted',
    'other TaskCancelled',
    'one TaskCancelled',
  ])
  t.strictSame(told(red), ['one TaskSubmitted', 'one TaskCancelled'])
  t.strictSame(told(ended), ['other TaskCancelled', 'one TaskCancelled'])
  t.strictSame(told(both), ['one TaskCancelled'])
})

t.test('what it names must be what it can name', async t => {
  for (const query of [
    'type=A%20b',
    'status=DONE',
    'label.=x',
    'label.A%20=x',
    'tenant=',
    `lastEventId=${'1'.repeat(257)}`,
  ])
    isProblem(t, await api.get(`/v1/events?${query}`), 'invalid_request')
})

t.test('it goes on behind its Last-Event-ID, without a gap and without doubling', async t => {
  const { taskId, type } = await api.submit()
  const first = await open(t, `type=${type}`)
  await placed(first)
  await note(taskId, '1')
  await seen(first, taskId, 'TaskNoted')
  first.close()
  for (const text of ['2', '3']) await note(taskId, text)
  // Others between them.
  await api.submit()
  const again = await open(t, `type=${type}`, first.lastEventId!)
  await note(taskId, '4')
  await again.until('the fourth', ({ data }) => (data.task as { revision?: number })?.revision === 4)
  t.strictSame(again.told(), ['TaskNoted PENDING 2', 'TaskNoted PENDING 3', 'TaskNoted PENDING 4'])
  const fromPlace = await open(t, `type=${type}&lastEventId=${encodeURIComponent(again.lastEventId!)}`)
  await placed(fromPlace)
  t.strictSame(fromPlace.told(), [], 'and not what it has')
  const fromStart = await open(t, `type=${type}`, '0')
  await fromStart.until('the fourth', ({ data }) => (data.task as { revision?: number })?.revision === 4)
  t.equal(fromStart.told().length, 5, 'from the start of the log')
})

t.test('an id that is none of this log begins anew, and says so', async t => {
  const first = await open(t, 'type=a')
  await placed(first)
  const [position, eventId, logId] = first.lastEventId!.split('.')
  for (const id of [
    'nonsense',
    '7',
    `${position}.${eventId}.${randomUUID()}`,
    `${position}.${randomUUID()}.${logId}`,
    `999999999.${eventId}.${logId}`,
    `1/2.${eventId}.${logId}`,
  ]) {
    const sse = await open(t, 'type=a', id)
    await placed(sse)
    t.match(sse.messages[0], { event: 'resync', data: { reason: 'unknown_id' } }, id)
    sse.close()
  }
})

t.test('while events flow, clients that come and go miss none and see none twice', async t => {
  const { taskId, type } = await api.submit()
  let sse = await open(t, `type=${type}`)
  await placed(sse)
  let flowing = true
  t.teardown(() => {
    flowing = false
  })
  let written = 0
  const writing = (async () => {
    while (flowing) if ((await note(taskId, 'x')).status === 200) written++
  })()
  const told: string[] = []
  let lastEventId = sse.lastEventId!
  for (let times = 0; times < 20; times++) {
    // Cut at any point: while it catches up, at its place, or after some events of now.
    if (times % 3 > 0) await placed(sse)
    if (times % 3 > 1) await sse.until('an event of now', ({ event }) => event === 'task')
    sse.close()
    told.push(...sse.told())
    // One that was cut before it was told anything comes back with what it had.
    lastEventId = sse.lastEventId ?? lastEventId
    sse = await open(t, `type=${type}`, lastEventId)
  }
  flowing = false
  await writing
  await sse.until('the last one', () => told.length + sse.told().length >= written)
  told.push(...sse.told())
  t.strictSame(
    told,
    Array.from({ length: written }, (_, n) => `TaskNoted PENDING ${n + 1}`),
    `${written} events`,
  )
})

t.test('who has gone is told no more', async t => {
  await until('all of the tests before have gone', () => service.changes.size === 0)
  const sse = await open(t, `type=${aType()}`)
  t.equal(service.changes.size, 1)
  sse.close()
  await until('it has gone', () => service.changes.size === 0)
})

t.test('a key of a tenant is told of its tenant alone, and for as long as it is valid', async t => {
  const key = async (tenant: string | null) => {
    const made = await api.post('/v1/keys', { name: `k-${randomUUID()}`, scopes: ['read'], tenant })
    return made.body as { keyId: string; secret: string }
  }
  const [acme, other] = [await key('acme'), await key('other')]
  const type = aType()
  const streamWith = ({ secret }: { secret: string }, path: string) =>
    openSse(t, api.url + path, { authorization: `Bearer ${secret}` })
  const ofAcme = await streamWith(acme, `/v1/events?type=${type}`)
  const ofOther = await streamWith(other, `/v1/events?type=${type}`)
  const all = await open(t, `type=${type}`)
  const named = await open(t, `type=${type}&tenant=acme`)
  isProblem(
    t,
    await api.get('/v1/events?tenant=acme', { authorization: `Bearer ${other.secret}` }),
    'other_tenant',
  )
  const task = await api.submit({ type, tenant: 'acme' })
  await api.submit({ type })
  const last = await api.submit({ type, tenant: 'other' })
  isProblem(
    t,
    await api.get(`/v1/tasks/${task.taskId}/events`, { authorization: `Bearer ${other.secret}` }),
    'not_found',
  )
  isProblem(
    t,
    await api.get(`/v1/tasks/${task.taskId}`, { authorization: `Bearer ${other.secret}`, prefer: 'wait=50' }),
    'not_found',
  )
  await seen(ofOther, last.taskId, 'TaskSubmitted')
  await seen(all, last.taskId, 'TaskSubmitted')
  t.strictSame(
    [ofAcme, ofOther, all, named].map(sse => sse.told().length),
    [1, 1, 3, 1],
  )
  await api.post(`/v1/keys/${acme.keyId}/revoke`, {})
  await ofAcme.untilEnd()
  t.match(ofAcme.messages.at(-1), { event: 'end', data: { reason: 'key_refused' } })
  t.notOk(ofOther.ended, 'another key is still good')
})
