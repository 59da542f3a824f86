import t from 'tap'
import { startGuarded } from '../api/access-fixture.ts'
import { testDatabase } from '../support/postgres.ts'
import { rollcall, startCommands, startDev, temporaryFolder } from './fixture.ts'

const guarded = await startGuarded(t)
const { api, databaseUrl, keys } = guarded
const inDatabase = startCommands(t, { ROLLCALL_DATABASE_URL: databaseUrl })
const KEY = /rck_[0-9a-f]{16}_[0-9a-f]{64}/

t.test('the first key is made in the database, and the others with it over the service', async t => {
  const made = await inDatabase('keys', 'create', '--name', 'root', '--scopes', 'all')
  t.match(made, { code: 0, stderr: /^key [0-9a-f]{16} for root; keep it now/ })
  t.match(made.stdout, new RegExp(`^${KEY.source}\n$`), 'the output is the key and nothing else')
  const env = {
    ROLLCALL_URL: api.url,
    ROLLCALL_KEY: made.stdout.trim(),
    ROLLCALL_DATABASE_URL: 'postgres://nowhere:1/x',
  }
  const run = startCommands(t, env)
  const second = await run(
    'keys',
    'create',
    '--name',
    'acme-worker',
    '--scopes',
    'work,read',
    '--tenant',
    'acme',
    '--json',
  )
  t.match(second, { code: 0, stderr: '' })
  const told = JSON.parse(second.stdout)
  t.match(told, {
    name: 'acme-worker',
    scopes: ['work', 'read'],
    tenant: 'acme',
    secret: KEY,
    revokedAt: null,
  })

  const { stdout } = await run('keys', 'list')
  const [head, ...lines] = stdout.trimEnd().split('\n')
  t.match(head, /^KEY +NAME +SCOPES +TENANT +MADE +USED +STATE$/)
  t.match(lines, [
    new RegExp(`^${told.keyId}  acme-worker +work,read +acme +\\S.* +never +live$`),
    /^[0-9a-f]{16} {2}root +submit,read,work,operate,audit,admin +- +\S.* +live$/,
  ])
  t.notMatch(stdout, KEY)

  t.match(await run('keys', 'revoke', 'acme-worker'), { code: 0, stdout: /acme-worker {2}revoked now\n$/ })
  t.match(await run('keys', 'list'), { stdout: /acme-worker.*revoked now\n/ })
  const page = JSON.parse((await run('keys', 'list', '--limit', '1', '--json')).stdout)
  t.match(page, { keys: [{ name: 'acme-worker', revokedBy: / via root$/ }], nextCursor: /^\d+$/ })
  t.match(await run('keys', 'list', '--limit', '1', '--cursor', page.nextCursor), { stdout: /root/ })
})

t.test('what cannot be made or found is refused, over the service and in the database', async t => {
  const { secret } = (await keys.create({
    name: 'admin',
    scopes: ['admin'],
    tenant: null,
    createdBy: 'test',
  }))!
  const overService = startCommands(t, { ROLLCALL_URL: api.url, ROLLCALL_KEY: secret })
  for (const run of [inDatabase, overService]) {
    const create = (...args: string[]) => run('keys', 'create', ...args)
    t.match(await create('--name', 'admin', '--scopes', 'read'), { code: 1, stderr: /\(key_name_taken\)/ })
    t.match(await create('--name', 'A B', '--scopes', 'read'), { code: 2, stderr: /name/ })
    t.match(await create('--name', '0123456789abcdef', '--scopes', 'read'), {
      code: 2,
      stderr: /must not look like the id/,
    })
    t.match(await create('--name', 'x', '--scopes', 'everything'), { code: 2, stderr: /scopes/ })
    t.match(await create('--name', 'x', '--scopes', 'read,read'), { code: 2, stderr: /twice/ })
    t.match(await run('keys', 'revoke', 'nobody'), { code: 1, stderr: /\(key_not_found\)/ })
    t.match(await run('keys', 'list', '--cursor', 'x'), { code: 2, stderr: /not one that a list has given/ })
  }
  t.match(await inDatabase('keys', 'list', '--database-url', databaseUrl, '--data-dir', 'x'), { code: 2 })
  t.match(await inDatabase('keys', 'list', '--data-dir', '/nowhere'), { code: 3, stderr: /No .*dev runs/ })
  const { url } = await testDatabase(t, { migrated: false })
  t.match(await inDatabase('keys', 'list', '--database-url', url), { code: 2, stderr: /\(not_migrated\)/ })
  t.match(await startCommands(t, { ROLLCALL_URL: api.url })('keys', 'list'), {
    code: 1,
    stderr: /\(unauthenticated\)/,
  })
})

t.test(
  'every command shows its key, from the environment or the option, and no message repeats it',
  async t => {
    const { secret } = (await keys.create({
      name: 'submitter',
      scopes: ['submit'],
      tenant: null,
      createdBy: 'test',
    }))!
    const env = { ROLLCALL_URL: api.url, ROLLCALL_KEY: secret }
    const run = startCommands(t, env)
    t.match(await run('submit', 'a', 'null'), { code: 0 })
    const refused = await run('list')
    t.match(refused, { code: 1, stderr: /lacks the scope read.*\(missing_scope\)/ })
    const bare = startCommands(t, { ROLLCALL_URL: api.url })
    t.match(await bare('submit', 'a', 'null'), { code: 1, stderr: /\(unauthenticated\)/ })
    t.match(await bare('submit', 'a', 'null', '--key', secret), { code: 0 })
    const told = [refused]
    for (const args of [
      ['list', '--help'],
      ['--help'],
      ['submit', 'a', 'null', '--key', `${secret} x`],
      ['submit', 'a', 'null', '--key', `${secret}\n`],
      ['submit', 'a', 'null', '--url', 'http://127.0.0.1:1', '--key', secret],
      ['submit', 'a', 'null', '--url', 'nonsense', '--key', secret],
      ['nonsense', '--key', secret],
      ['get', 'nonsense', '--key', secret],
    ])
      told.push(await run(...args), await run(...args, '--json'))
    for (const { stdout, stderr } of told) t.notMatch(stdout + stderr, secret.split('_')[2]!)
  },
)

t.test('a worker shows its key', async t => {
  const { secret } = (await keys.create({
    name: 'worker',
    scopes: ['work'],
    tenant: 'acme',
    createdBy: 'test',
  }))!
  const { post, get } = await guarded.caller({ tenant: 'acme' })
  const { taskId } = (await post('/v1/tasks', { type: 'echo' })).body
  const { startCommand } = await import('./fixture.ts')
  const worker = startCommand(['worker', '--type', 'echo', '--exec', 'cat'], {
    env: { ROLLCALL_URL: api.url, ROLLCALL_KEY: secret },
  })
  await worker.until(/succeeded/)
  worker.child.kill('SIGTERM')
  t.match(await worker.ended, { code: 0 })
  t.match(await get(`/v1/tasks/${taskId}`), { body: { status: 'SUCCESS' } })
})

t.test('the key of a dev that asks for keys is made through its data folder', async t => {
  const dev = await startDev(t, { args: ['--require-keys'], dataDir: await temporaryFolder(t) })
  const ask = (args: string[], env = {}) => rollcall([...args, '--url', dev.url], { env })
  t.match(await ask(['list']), { code: 1, stderr: /\(unauthenticated\)/ })
  const made = await rollcall([
    'keys',
    'create',
    '--name',
    'me',
    '--scopes',
    'all',
    '--data-dir',
    dev.dataDir,
  ])
  t.match(made, { code: 0 })
  t.match(await ask(['list'], { ROLLCALL_KEY: made.stdout.trim() }), { code: 0 })
})
