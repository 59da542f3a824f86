/** TLS and passwords, with a broker that asks for them. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'
import type { KafkaOptions } from '../../../src/broker/kafka/kafka-broker.ts'
import { SASL_MECHANISMS } from '../../../src/broker/kafka/options.ts'
import { kafkaJars } from '../../../src/runtime/kafka-broker/jars.ts'
import { findJava } from '../../../src/runtime/kafka-broker/java.ts'
import { steadyPort } from '../../../src/runtime/port.ts'
import { selfSigned } from '../../support/certificate.ts'
import { ownKafkaBroker, uniqueName } from '../../support/kafka.ts'
import { open, read, record, until } from './fixture.ts'

const USER = { username: 'rollcall', password: 'of-tests, "only"' }
const sasl = (mechanism: (typeof SASL_MECHANISMS)[number], password = USER.password) => ({
  mechanism,
  ...USER,
  password,
})
type Security = Pick<KafkaOptions, 'tls' | 'sasl'>

/** A handshake takes its time on a busy machine, and what is asked here is why it fails. */
const PATIENT = { connectMs: 5_000, requestMs: 10_000, sendMs: 20_000 }

/** For a file of Java's properties: one line. */
const line = (pem: string): string => pem.trim().replaceAll(/\r?\n/g, '\\n')

interface Ports {
  secure: number
  mutual: number
}

/** Two listeners more: one that wants a password, one that wants a certificate. */
function listeners({ secure, mutual }: Ports, { certificate, key }: { certificate: string; key: string }) {
  const password = USER.password.replaceAll('"', '\\\\"')
  const store = (name: string) => ({
    [`listener.name.${name}.ssl.keystore.type`]: 'PEM',
    [`listener.name.${name}.ssl.keystore.certificate.chain`]: line(certificate),
    [`listener.name.${name}.ssl.keystore.key`]: line(key),
  })
  return {
    listeners: `SECURE://127.0.0.1:${secure},MUTUAL://127.0.0.1:${mutual}`,
    'advertised.listeners': `SECURE://localhost:${secure},MUTUAL://localhost:${mutual}`,
    'listener.security.protocol.map': 'SECURE:SASL_SSL,MUTUAL:SSL',
    ...store('secure'),
    ...store('mutual'),
    'listener.name.mutual.ssl.client.auth': 'required',
    'listener.name.mutual.ssl.truststore.type': 'PEM',
    'listener.name.mutual.ssl.truststore.certificates': line(certificate),
    'listener.name.secure.sasl.enabled.mechanisms': 'PLAIN,SCRAM-SHA-256,SCRAM-SHA-512',
    'listener.name.secure.plain.sasl.jaas.config': `org.apache.kafka.common.security.plain.PlainLoginModule required user_${USER.username}="${password}";`,
    ...Object.fromEntries(
      ['256', '512'].map(bits => [
        `listener.name.secure.scram-sha-${bits}.sasl.jaas.config`,
        'org.apache.kafka.common.security.scram.ScramLoginModule required;',
      ]),
    ),
  }
}

/** kafkajs cannot, Kafka's own tool can: one mechanism at a time. */
async function addUser(brokers: readonly string[]): Promise<void> {
  const [java, jars] = await Promise.all([findJava(), kafkaJars()])
  const tool = ['-cp', jars.classPath, 'kafka.admin.ConfigCommand', '--bootstrap-server', brokers.join(',')]
  const user = ['--alter', '--entity-type', 'users', '--entity-name', USER.username]
  const quick = ['-XX:TieredStopAtLevel=1', '-Dorg.slf4j.simpleLogger.defaultLogLevel=error']
  const credentials = ['256', '512'].map(bits => `SCRAM-SHA-${bits}=[password=${USER.password}]`)
  await Promise.all(
    credentials.map(one =>
      promisify(execFile)(java.command, [...quick, ...tool, ...user, '--add-config', one]),
    ),
  )
}

t.test('TLS and passwords: who fits works, and who does not is told why', async t => {
  const { certificate, key } = await selfSigned(t)
  const ports = { secure: await steadyPort(), mutual: await steadyPort() }
  const server = await ownKafkaBroker(t, listeners(ports, { certificate, key }))
  if (!server) return
  await addUser(server.brokers)
  const secure = `localhost:${ports.secure}`
  const mutual = `localhost:${ports.mutual}`
  const ca = certificate

  const works: [string, string, Security][] = [
    ...SASL_MECHANISMS.map((name): [string, string, Security] => [
      name,
      secure,
      { tls: { ca }, sasl: sasl(name) },
    ]),
    [
      'by an address, and a name',
      `127.0.0.1:${ports.secure}`,
      { tls: { ca, serverName: 'localhost' }, sasl: sasl('plain') },
    ],
    ['a certificate of our own', mutual, { tls: { ca, cert: certificate, key } }],
  ]
  for (const [what, address, security] of works)
    await t.test(what, async t => {
      const { broker, lines } = open(t, { brokers: [address] }, PATIENT, security)
      const topic = uniqueName('secure')
      await broker.ensureTopics([{ name: topic, partitions: 1, compacted: false }])
      await broker.send(topic, [record('a')])
      const reader = read(broker, [topic])
      await until('it came', () => reader.got.length === 1)
      await broker.close()
      for (const secret of [USER.password, key.slice(60, 90)])
        t.notOk(
          lines.some(one => one.includes(JSON.stringify(secret).slice(1, -1))),
          'no secret is in the log',
        )
    })

  const wrong: [string, string, Security, RegExp][] = [
    [
      'a wrong password',
      secure,
      { tls: { ca }, sasl: sasl('scram-sha-512', 'wrong') },
      /SASL|authentication/i,
    ],
    [
      'a wrong password, plain',
      secure,
      { tls: { ca }, sasl: sasl('plain', 'wrong') },
      /SASL|authentication/i,
    ],
    ['an unknown authority', secure, { tls: true, sasl: sasl('plain') }, /self-signed certificate/],
    ['another name', `127.0.0.1:${ports.secure}`, { tls: { ca }, sasl: sasl('plain') }, /altnames/],
    ['no TLS', secure, { sasl: sasl('plain') }, /wants TLS/],
    ['no certificate', mutual, { tls: { ca } }, /certificate|closed/i],
  ]
  await Promise.all(
    wrong.map(async ([what, address, security, reason]) => {
      const { broker, lines } = open(t, { brokers: [address] }, PATIENT, security)
      await t.rejects(
        broker.send('any', [record('a')]),
        { code: 'broker_unavailable', message: reason },
        what,
      )
      const reader = read(broker, ['any'])
      await until(`${what}: the health says why`, () => reason.test(reader.consumer.health().reason ?? ''))
      await broker.close()
      t.notOk(
        lines.some(one => one.includes('"wrong"') || one.includes('of-tests')),
        `${what}: no password is logged`,
      )
    }),
  )
})

t.test('a password that goes over the network as it is makes a warning', async t => {
  const warned = (security: Security): boolean =>
    open(t, { brokers: ['127.0.0.1:1'] }, {}, security).lines.some(line => line.includes('as it is'))
  t.ok(warned({ sasl: sasl('plain') }))
  t.notOk(warned({ sasl: sasl('scram-sha-256') }))
  t.notOk(warned({ tls: true, sasl: sasl('plain') }))
})
