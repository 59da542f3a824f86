import { writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import t from 'tap'
import { ConfigError, readEnvironment, serviceConfig } from '../../src/runtime/config.ts'
import { selfSigned } from '../support/certificate.ts'

const BASE = { databaseUrl: 'postgres://localhost/rollcall', kafkaBrokers: ['kafka:9093'] }
const PASSWORD = 'p4ss word"=#'
const of = (env: Record<string, string>) => serviceConfig(readEnvironment(env), BASE)

t.test('without settings Kafka is spoken to without TLS and as nobody', async t => {
  t.same(serviceConfig(BASE).kafkaSecurity, { tls: false })
  t.same(of({ ROLLCALL_KAFKA_TLS: '', ROLLCALL_KAFKA_SASL: '' }).kafkaSecurity, { tls: false })
  t.same(of({ ROLLCALL_KAFKA_TLS: 'true' }).kafkaSecurity, { tls: true })
})

t.test('files are read, and a name and a password make a mechanism', async t => {
  const { certificate, key, caFile } = await selfSigned(t)
  const keyFile = join(dirname(caFile), 'key.pem')
  await writeFile(keyFile, key)
  const env = {
    ROLLCALL_KAFKA_TLS: 'true',
    ROLLCALL_KAFKA_CA_FILE: caFile,
    ROLLCALL_KAFKA_CERT_FILE: caFile,
    ROLLCALL_KAFKA_KEY_FILE: keyFile,
    ROLLCALL_KAFKA_SASL: 'scram-sha-512',
    ROLLCALL_KAFKA_USERNAME: 'rollcall',
    ROLLCALL_KAFKA_PASSWORD: PASSWORD,
  }
  const config = of(env)
  t.same(config.kafkaSecurity, {
    tls: { ca: certificate, cert: certificate, key },
    sasl: { mechanism: 'scram-sha-512', username: 'rollcall', password: PASSWORD },
  })
  t.notOk(
    Object.keys(config).some(name => /password/i.test(name)),
    'the password is in one place',
  )
})

t.test('what cannot be used is refused at the start, by name, and never with what it holds', async t => {
  const { key, caFile } = await selfSigned(t)
  const other = await selfSigned(t)
  const folder = dirname(caFile)
  const keyFile = join(folder, 'key.pem')
  const otherKey = join(folder, 'other.pem')
  const noPem = join(folder, 'none.pem')
  await Promise.all([
    writeFile(keyFile, key),
    writeFile(otherKey, other.key),
    writeFile(noPem, 'secret-bytes'),
  ])
  const tls = { ROLLCALL_KAFKA_TLS: 'true' }
  const user = { ROLLCALL_KAFKA_USERNAME: 'a', ROLLCALL_KAFKA_PASSWORD: PASSWORD }
  const wrong: [Record<string, string>, RegExp][] = [
    [{ ROLLCALL_KAFKA_TLS: 'yes' }, /at kafkaTls/],
    [{ ROLLCALL_KAFKA_CA_FILE: caFile }, /without TLS: set ROLLCALL_KAFKA_TLS=true.+at kafkaCaFile/s],
    [{ ...tls, ROLLCALL_KAFKA_CA_FILE: join(folder, 'gone') }, /cannot be read: ENOENT.+at kafkaCaFile/s],
    [{ ...tls, ROLLCALL_KAFKA_CA_FILE: noPem }, /no certificate in PEM.+at kafkaCaFile/s],
    [{ ...tls, ROLLCALL_KAFKA_CERT_FILE: caFile }, /come together.+at kafkaCertFile/s],
    [{ ...tls, ROLLCALL_KAFKA_KEY_FILE: keyFile }, /come together.+at kafkaKeyFile/s],
    [
      { ...tls, ROLLCALL_KAFKA_CERT_FILE: caFile, ROLLCALL_KAFKA_KEY_FILE: noPem },
      /no key without a passphrase/,
    ],
    [
      { ...tls, ROLLCALL_KAFKA_CERT_FILE: caFile, ROLLCALL_KAFKA_KEY_FILE: otherKey },
      /not the key of the cert/,
    ],
    [{ ...user, ROLLCALL_KAFKA_SASL: 'gssapi' }, /at kafkaSasl/],
    [{ ...user }, /needs a mechanism: plain, scram-sha-256, scram-sha-512/],
    [
      { ROLLCALL_KAFKA_SASL: 'plain', ROLLCALL_KAFKA_PASSWORD: PASSWORD },
      /plain needs a name.+at kafkaUsername/s,
    ],
    [
      { ROLLCALL_KAFKA_SASL: 'plain', ROLLCALL_KAFKA_USERNAME: 'a' },
      /needs a password, by ROLLCALL_KAFKA_PASSWORD/,
    ],
  ]
  for (const [env, message] of wrong) {
    t.throws(() => of(env), { constructor: ConfigError, message }, JSON.stringify(Object.keys(env)))
    t.doesNotThrow(() => {
      try {
        of(env)
      } catch (error) {
        if (/p4ss|secret-bytes|PRIVATE/.test((error as Error).message)) throw error
      }
    }, 'no secret is repeated')
  }
})
