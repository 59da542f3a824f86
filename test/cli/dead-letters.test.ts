import { randomUUID } from 'node:crypto'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import type { DeadLetterReason } from '../../src/workers/dead-letters.ts'
import { letterIdOf } from '../../src/workers/dead-letters.ts'
import { PostgresDeadLetters } from '../../src/workers/postgres/dead-letters.ts'
import { aType, startApi, until } from '../api/fixture.ts'
import { aRecord, says } from '../workers/worker-event-records.ts'
import { rollcall, startCommands, temporaryFolder } from './fixture.ts'

const { api, service } = await startApi(t)
const deadLetters = new PostgresDeadLetters(service.pool)
const env = { ROLLCALL_URL: api.url }
const run = startCommands(t, env)
const ask = (...args: string[]) => run('dead-letters', ...args)
const askJson = async (...args: string[]) => JSON.parse((await ask(...args, '--json')).stdout)

const keep = async (
  record = aRecord({ value: Buffer.from('{') }),
  code: DeadLetterReason = 'invalid_json',
  taskId: string | null = null,
  message = `${code}, as it is`,
): Promise<string> => {
  await deadLetters.keep([{ record, fault: { code, message, taskId } }])
  return letterIdOf(record)
}
const curable = async () => {
  const { taskId } = await api.submit({ type: aType() })
  return { taskId, letterId: await keep(says(taskId, 'SUCCEED'), 'not_found', taskId) }
}

t.beforeEach(async () => {
  await service.pool.query('TRUNCATE rollcall.dead_letters')
})

t.test('a list is a table with a line for each letter, and the number that wait', async t => {
  t.match(await ask('list'), { code: 0, stdout: 'no dead letters\n0 waiting in all\n', stderr: '' })
  const { letterId, taskId } = await curable()
  const evil = await keep(undefined, 'invalid_event', null, '\u001b[31mred\u202e\nline')
  const { code, stdout } = await ask('list')
  t.equal(code, 0)
  const lines = stdout.trimEnd().split('\n')
  t.match(lines, [
    /^LETTER +REASON +KEPT +TASK +MESSAGE$/,
    new RegExp(`^${evil}  invalid_event +\\S.* +not known +\\\\u001b\\[31mred\\\\u202e line$`),
    new RegExp(`^${letterId}  not_found +\\S.* +${taskId}  not_found, as it is$`),
    /^2 waiting in all$/,
  ])
  t.equal(lines.length, 4)
  t.match(await askJson('list', '--task', taskId), { letters: [{ letterId }], waiting: 2, nextCursor: null })
  t.match(await askJson('list', '--reason', 'invalid_event'), { letters: [{ letterId: evil }] })
  t.match(await askJson('list', '--status', 'redriven'), { letters: [] })
  const page = await ask('list', '--limit', '1')
  const [, cursor] = /--cursor (\d+)$/m.exec(page.stdout) ?? []
  t.match(await askJson('list', '--cursor', cursor ?? ''), { letters: [{ letterId }], nextCursor: null })
})

t.test('what cannot be asked is a matter of usage', async t => {
  const id = randomUUID()
  for (const args of [
    ['list', '--status', 'lost'],
    ['list', '--reason', 'unknown'],
    ['list', '--limit', '0'],
    ['list', '--task', '1'],
    ['show'],
    ['show', '1'],
    ['show', id, '--json', '--value-to', '-'],
    ['redrive'],
    ['redrive', id, '--all'],
    ['discard', id],
    ['discard', '--reason', 'x'],
    ['discard', id, '--reason', ' '],
  ])
    t.match(await ask(...args), { code: 2, stdout: '', stderr: /./ }, args.join(' '))
  t.match(await ask('show', id), { code: 1, stderr: /dead_letter_not_found/ })
  t.match(await run('dead-letters', 'list', '--url', 'http://127.0.0.1:9'), { code: 3 })
})

t.test('one letter is shown whole, for people and for programs', async t => {
  const value = Buffer.from([...Buffer.from('{"a":"ä\u001b\n'), 0, 255])
  const headers = [['h\0', Buffer.from('v\u0007')]] as const
  const letterId = await keep(aRecord({ key: Buffer.from('k'), value, headers }))
  const { code, stdout } = await ask('show', letterId)
  t.equal(code, 0)
  t.match(stdout, new RegExp(`^${letterId}  waiting$`, 'm'))
  t.match(stdout, /^reason {5}invalid_json: invalid_json, as it is$/m)
  t.match(stdout, /^from {7}rollcall\.worker-events, partition 0, offset \d+, timestamp \d+$/m)
  t.match(stdout, /^header {5}h\\u0000: v\\u0007$/m)
  t.match(stdout, /^value {6}\{"a":"ä\\u001b \\u0000�$/m)
  t.match(await askJson('show', letterId), { letterId, value: value.toString('base64') })
  const none = await keep(aRecord())
  t.match((await ask('show', none)).stdout, /^key {8}none\nvalue {6}none$/m)
  const large = await keep(aRecord({ value: Buffer.alloc(5_000, 'x') }))
  t.match((await ask('show', large)).stdout, /5000 bytes in all; --value-to has them/)
  await ask('discard', letterId, '--reason', 'noise')
  t.match((await ask('show', letterId)).stdout, /^settled {4}.* by .+: noise$/m)
})

t.test('its bytes go to a file or to standard output, as they are', async t => {
  const value = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
  const letterId = await keep(aRecord({ value }))
  const file = join(await temporaryFolder(t), 'value')
  t.match(await ask('show', letterId, '--value-to', file), { code: 0, stdout: new RegExp(letterId) })
  t.strictSame(await readFile(file), value)
  const text = Buffer.from('{"ä":\n')
  const other = await keep(aRecord({ value: text }))
  t.match(await rollcall(['dead-letters', 'show', other, '--value-to', '-'], { env }), {
    code: 0,
    stdout: text.toString(),
    stderr: '',
  })
  t.match(await ask('show', letterId, '--value-to', join(file, 'below')), {
    code: 2,
    stderr: /file_unusable/,
  })
  const none = await keep(aRecord())
  await writeFile(file, 'as before')
  t.match(await ask('show', none, '--value-to', file), { code: 1, stderr: /no_value/ })
  t.equal(await readFile(file, 'utf8'), 'as before')
})

t.test('a redrive says what became of each, and fails where one stays', async t => {
  const { letterId, taskId } = await curable()
  const bad = await keep()
  t.match(await ask('redrive', letterId), { code: 0, stdout: `${letterId}  accepted\n` })
  t.match(await api.task(taskId), { status: 'SUCCESS' })
  t.match(await ask('redrive', bad, letterId), {
    code: 1,
    stdout: new RegExp(`^${bad}  kept  invalid_json: .*\n${letterId}  refused  not_waiting: .*\n$`),
  })
  const again = await ask('redrive', bad, '--json')
  t.equal(again.code, 1)
  t.match(JSON.parse(again.stdout), { results: [{ letterId: bad, kind: 'kept', code: 'invalid_json' }] })
  const { settledBy } = await askJson('show', letterId)
  t.ok(settledBy && settledBy !== 'anonymous', 'by whom')
})

t.test('all that wait are redriven, the oldest first, however many there are', async t => {
  t.match(await ask('redrive', '--all'), { code: 0, stdout: 'none waits\n' })
  const ids: string[] = []
  for (let nth = 0; nth < 205; nth++) ids.push(await keep(says(randomUUID(), 'HEARTBEAT'), 'internal_error'))
  const { code, stdout } = await ask('redrive', '--all')
  t.equal(code, 0)
  t.strictSame(
    stdout.trimEnd().split('\n'),
    ids.map(id => `${id}  signal`),
  )
  t.strictSame(await askJson('redrive', '--all'), { results: [] })
})

t.test('a discard needs a reason', async t => {
  const letterId = await keep()
  t.match(await ask('discard', letterId, '--reason', 'a test of the shop'), {
    code: 0,
    stdout: `${letterId}  discarded\n`,
  })
  t.match(await askJson('show', letterId), { status: 'discarded', settledBecause: 'a test of the shop' })
  t.match(await ask('discard', letterId, '--reason', 'again'), {
    code: 1,
    stdout: new RegExp(`^${letterId}  refused  not_waiting`),
  })
})

t.test('the roll call says that letters wait', async t => {
  await keep()
  await until('one is counted', async () =>
    /^1 dead letter waits for a person: .*dead-letters list$/m.test((await run('rollcall')).stdout),
  )
  await keep()
  await until('two are counted', async () =>
    /^2 dead letters wait for a person/m.test((await run('rollcall')).stdout),
  )
  await service.pool.query('TRUNCATE rollcall.dead_letters')
  await until('none is', async () => !/dead letter/.test((await run('rollcall')).stdout))
  t.pass()
})
