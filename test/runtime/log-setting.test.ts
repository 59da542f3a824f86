import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { ConfigError, readEnvironment, serviceConfig } from '../../src/runtime/config.ts'
import { describeLog, openLog } from '../../src/runtime/open-log.ts'
import { freePort } from '../cli/fixture.ts'
import { testDatabase } from '../support/postgres.ts'

const BASE = { databaseUrl: 'postgres://localhost/rollcall' }

t.test('the log is in the database unless an address is given', async t => {
  t.equal(serviceConfig(BASE).log, 'postgres')
  t.equal(serviceConfig({ log: 'postgres' }, BASE).log, 'postgres')
  const address = 'esdb://admin:S3cret@localhost?namespace=a'
  t.equal(serviceConfig(BASE, { log: address }).log, address)
  t.equal(readEnvironment({ ROLLCALL_LOG: address }).log, address)
  t.equal(readEnvironment({ ROLLCALL_LOG: '' }).log, undefined)
  t.equal(
    serviceConfig({ log: 'postgres' }, readEnvironment({ ROLLCALL_LOG: address }), BASE).log,
    'postgres',
  )
})

t.test('an address that cannot be used is refused at the start, without its password', async t => {
  const rows: [string, RegExp][] = [
    ['esdb://admin:S3cret@localhost?tsl=1', /tsl is no key of it.*\n +→ at log/s],
    ['eventstoredb', /must read esdb:/],
    ['postgres://u:S3cret@localhost/log', /in the database of --database-url: write postgres/],
  ]
  for (const [log, expected] of rows)
    try {
      serviceConfig({ log }, BASE)
      t.fail(log)
    } catch (error) {
      t.type(error, ConfigError)
      t.match((error as Error).message, expected)
      t.notMatch(JSON.stringify([error, String(error), (error as Error).stack]), /S3cret/, log)
    }
})

t.test('whatever shows an address shows no password', async t => {
  const rows: [string, string][] = [
    ['postgres', 'postgres'],
    ['postgres://u:S3cret@h:1/db', 'postgres://u:***@h:1/db'],
    ['postgres://u@h/db?password=S3cret', 'postgres://u@h/db?password=***'],
    ['postgres://u:S3#cret@h:x/db', 'postgres://…'],
    ['esdb://u:S3cret@h', 'esdb://u:***@h:2113'],
  ]
  for (const [address, shown] of rows) t.equal(describeLog(address), shown)
})

t.test('postgres is the log in the database, and a postgres address that of another', async t => {
  const [one, other] = await Promise.all([testDatabase(t), testDatabase(t)])
  const own = await openLog('postgres', { databaseUrl: one.url })
  const again = await openLog(one.url, { databaseUrl: other.url })
  const another = await openLog(other.url, { databaseUrl: one.url })
  t.teardown(() => Promise.all([own.close(), again.close(), another.close()]))
  t.equal(own.id, again.id)
  t.not(own.id, another.id)
})

t.test('a log in EventStoreDB is opened without being there', async t => {
  const log = await openLog(`esdb://127.0.0.1:${await freePort()}?tls=false`, {
    ...BASE,
    appendTimeoutMs: 500,
  })
  t.throws(() => log.id, { code: 'log_unavailable' })
  await t.rejects(log.head(), { code: 'log_unavailable' })
  await log.close()
})

t.test('certificates that cannot be used are refused at the start', async t => {
  const folder = t.testdir({ junk: 'junk' })
  const at = (name: string) => join(folder, name)
  const pair = (name: string) =>
    promisify(execFile)('openssl', [
      ...['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=test'],
      ...['-keyout', at(`${name}.key`), '-out', at(`${name}.pem`)],
    ])
  await Promise.all([pair('one'), pair('other'), writeFile(at('empty'), '')])
  const open = (...options: string[]) => openLog(`esdb://localhost?${options.join('&')}`, BASE)
  const files = (cert: string, key: string) => [`userCertFile=${at(cert)}`, `userKeyFile=${at(key)}`]
  for (const [options, why] of [
    [[`tlsCaFile=${at('gone')}`], /tlsCaFile of the log's address .*gone.*no such file/],
    [[`tlsCaFile=${at('junk')}`], /tlsCaFile of the log's address/],
    [[`tlsCaFile=${at('empty')}`], /tlsCaFile of the log's address/],
    [files('one.pem', 'gone'), /userCertFile and userKeyFile .*no such file/],
    [files('one.pem', 'other.key'), /userCertFile and userKeyFile .*mismatch/],
  ] as const)
    await t.rejects(open(...options), { code: 'config', message: why })
  const log = await open(`tlsCaFile=${at('one.pem')}`, ...files('other.pem', 'other.key'))
  await log.close()
})
