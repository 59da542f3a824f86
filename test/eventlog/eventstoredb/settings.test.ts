import { deepStrictEqual } from 'node:assert/strict'
import { parseConnectionString } from '@eventstore/db-client/dist/Client/parseConnectionString.js'
import fc from 'fast-check'
import t from 'tap'
import {
  connectionString,
  describeSettings,
  type EventStoreDBSettings,
  eventStoreDBSettings,
} from '../../../src/eventlog/eventstoredb/settings.ts'

const DEFAULTS: EventStoreDBSettings = {
  hosts: [{ address: 'localhost', port: 2113 }],
  discover: false,
  tls: true,
  tlsCaFile: null,
  userCertFile: null,
  userKeyFile: null,
  maxDiscoverAttempts: 3,
  discoveryIntervalMs: 100,
  gossipTimeoutSeconds: 2,
  keepAliveIntervalMs: 10_000,
  keepAliveTimeoutMs: 10_000,
  connectionName: 'rollcall',
  username: null,
  password: null,
  namespace: 'rollcall',
}

t.test('an address is read as users of EventStoreDB write it', async t => {
  const rows: [string, Partial<EventStoreDBSettings>][] = [
    ['esdb://localhost', {}],
    [' esdb://localhost:2113/ ', {}],
    ['ESDB://localhost?', {}],
    ['esdb://db_1.internal:1', { hosts: [{ address: 'db_1.internal', port: 1 }] }],
    [
      'esdb://127.0.0.1:2111,127.0.0.1:2112?tls=false',
      {
        hosts: [
          { address: '127.0.0.1', port: 2111 },
          { address: '127.0.0.1', port: 2112 },
        ],
        tls: false,
      },
    ],
    ['esdb+discover://cluster.dns', { discover: true, hosts: [{ address: 'cluster.dns', port: 2113 }] }],
    ['esdb://admin:changeit@localhost', { username: 'admin', password: 'changeit' }],
    ['esdb://a%40b:p%40%3A%2F%3F%25@localhost', { username: 'a@b', password: 'p@:/?%' }],
    ['esdb://admin:a:b&c@localhost/?TLS=true', { username: 'admin', password: 'a:b&c' }],
    [
      'esdb://localhost?tlsCAFile=./ca.pem&user-cert-file=u.pem&userkeyfile=%2Fu.key',
      { tlsCaFile: './ca.pem', userCertFile: 'u.pem', userKeyFile: '/u.key' },
    ],
    [
      'esdb://localhost?MaxDiscoverAttempts=7&discoveryInterval=250&gossipTimeoutSeconds=4',
      { maxDiscoverAttempts: 7, discoveryIntervalMs: 250, gossipTimeoutSeconds: 4 },
    ],
    [
      'esdb://localhost?keepAliveInterval=20000&keepAliveTimeout=30000&connectionName=a%20b',
      { keepAliveIntervalMs: 20_000, keepAliveTimeoutMs: 30_000, connectionName: 'a b' },
    ],
    ['esdb://localhost?namespace=other_2', { namespace: 'other_2' }],
  ]
  for (const [address, expected] of rows)
    t.strictSame(eventStoreDBSettings(address), { ...DEFAULTS, ...expected }, address)
})

t.test('what cannot be used is refused with its reason, and no part of a password', async t => {
  const rows: [string, RegExp][] = [
    ['', /must read esdb:/],
    ['http://localhost:2113', /must read esdb:/],
    ['esdb://localhost/path', /must read esdb:/],
    ['esdb://localhost#2113', /must read esdb:/],
    ['esdb://', /a host must be/],
    ['esdb://a,,b', /a host must be/],
    ['esdb://ho st', /a host must be/],
    ['esdb://a:1:2', /a host must be/],
    ['esdb://[::1]:2113', /no IPv6/],
    ['esdb://localhost:0', /a port must be/],
    ['esdb://localhost:65536', /a port must be/],
    ['esdb://localhost:', /a port must be/],
    ['esdb+discover://a,b', /takes one name/],
    ['esdb://localhost?tsl=false', /tsl is no key of it; there are tls, tlsCaFile, .*namespace$/],
    ['esdb://localhost?constructor=1', /constructor is no key/],
    ['esdb://localhost?tls', /tls has no value/],
    ['esdb://localhost?connectionName=', /connectionName has no value/],
    ['esdb://localhost?tls=yes', /tls must be true or false/],
    ['esdb://localhost?tls=true&TLS=true', /tls is given twice/],
    ['esdb://localhost?maxDiscoverAttempts=-1', /maxDiscoverAttempts must be a whole number/],
    ['esdb://localhost?maxDiscoverAttempts=0', /maxDiscoverAttempts must be 1 attempts at least/],
    ['esdb://localhost?discoveryInterval=1e3', /discoveryInterval must be a whole number of milliseconds/],
    ['esdb://localhost?gossipTimeoutSeconds=5000', /must be 60 seconds at most/],
    ['esdb://localhost?gossipTimeout=5', /write gossipTimeoutSeconds: some clients/],
    ['esdb://localhost?keepAliveInterval=9999', /keepAliveInterval must be 10000 .*servers cut off/],
    ['esdb://localhost?keepAliveTimeout=-1', /keepAliveTimeout must be a whole number/],
    ['esdb://localhost?nodePreference=follower', /nodePreference is not taken; .* leader/],
    ['esdb://localhost?throwOnAppendFailure=false', /throwOnAppendFailure is not taken; /],
    ['esdb://localhost?default-deadline=1', /default-deadline is not taken; /],
    ['esdb://localhost?tlsVerifyCert=false', /tlsVerifyCert is not taken; .*tlsCaFile/],
    ['esdb://localhost?connectionName=%0A', /connectionName must be 1 to 128 visible/],
    ['esdb://localhost?namespace=Rollcall', /namespace must be/],
    ['esdb://localhost?namespace=_a', /namespace must be/],
    [`esdb://localhost?namespace=${'a'.repeat(33)}`, /namespace must be/],
    ['esdb://localhost?userCertFile=a', /belong together/],
    ['esdb://localhost?tls=false&tlsCaFile=a', /no use without TLS/],
    ['esdb://admin:S3cret@localhost?tls=false', /not sent without TLS/],
    ['esdb://admin:S3@cret@localhost', /must be written as %40/],
    ['esdb://admin:S3?cret@localhost', /must read esdb:/],
    ['esdb://admin:S3/cret@localhost', /must read esdb:/],
    ['esdb://admin:S3#cret@localhost', /must read esdb:/],
    ['esdb://admin:S3%cret@localhost', /password is not percent-encoded/],
    ['esdb://admin:S3cret', /a port must be/],
    ['esdb://admin@localhost', /there must be user:password/],
    ['esdb://admin:@localhost', /there must be user:password/],
    ['esdb://:S3cret@localhost', /there must be user:password/],
    ['esdb://ad%3Amin:S3cret@localhost', /cannot hold a colon/],
    ['esdb://admin:S3cret@localhost?tsl=1', /tsl is no key/],
  ]
  for (const [address, expected] of rows) {
    const error = refusal(address)
    t.match(error, { code: 'config', message: expected }, address)
    t.notMatch(error.message, /S3|cret/, address)
  }
})

function refusal(address: string): Error {
  try {
    eventStoreDBSettings(address)
  } catch (error) {
    return error as Error
  }
  return new Error('it was taken')
}

const visible = fc.string({ minLength: 1, maxLength: 40, unit: 'grapheme' })
// HTTP's basic authentication ends a user's name at the first colon.
const userName = visible.map(text => text.replaceAll(':', ';'))
const asciiName = fc
  .string({ minLength: 1, maxLength: 40, unit: 'grapheme-ascii' })
  .map(text => text.trim())
  .filter(text => text !== '')
const aHost = fc
  .tuple(fc.stringMatching(/^[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?$/), fc.integer({ min: 1, max: 65_535 }))
  .map(([address, port]) => ({ address, port }))
const aPath = fc.option(visible)
const keepAlive = fc.integer({ min: 10_000, max: 3_600_000 })
const someSettings = fc
  .record({
    hosts: fc.array(aHost, { minLength: 1, maxLength: 4 }),
    discover: fc.boolean(),
    tls: fc.boolean(),
    tlsCaFile: aPath,
    cert: fc.option(fc.tuple(visible, visible)),
    maxDiscoverAttempts: fc.integer({ min: 1, max: 100 }),
    discoveryIntervalMs: fc.integer({ min: 1, max: 60_000 }),
    gossipTimeoutSeconds: fc.integer({ min: 1, max: 60 }),
    keepAliveIntervalMs: keepAlive,
    keepAliveTimeoutMs: keepAlive,
    connectionName: asciiName,
    user: fc.option(fc.tuple(userName, visible)),
    namespace: fc.stringMatching(/^[a-z0-9][a-z0-9_]{0,31}$/),
  })
  .map(({ cert, user, tls, tlsCaFile, hosts, discover, ...rest }): EventStoreDBSettings => {
    const [userCertFile, userKeyFile] = (tls ? cert : null) ?? [null, null]
    const [username, password] = (tls ? user : null) ?? [null, null]
    return {
      ...rest,
      hosts: discover ? hosts.slice(0, 1) : hosts,
      discover,
      tls,
      tlsCaFile: tls ? tlsCaFile : null,
      userCertFile,
      userKeyFile,
      username,
      password,
    }
  })

t.test('the client reads out of our connection string what was set', async t => {
  fc.assert(
    fc.property(someSettings, settings => {
      const read = parseConnectionString(connectionString(settings))
      deepStrictEqual(read, {
        dnsDiscover: settings.discover,
        hosts: settings.hosts,
        ...(settings.username !== null && {
          defaultCredentials: { username: settings.username, password: settings.password },
        }),
        tls: settings.tls,
        ...(settings.tlsCaFile !== null && { tlsCAFile: settings.tlsCaFile }),
        ...(settings.userCertFile !== null && {
          userCertFile: settings.userCertFile,
          userKeyFile: settings.userKeyFile,
        }),
        maxDiscoverAttempts: settings.maxDiscoverAttempts,
        discoveryInterval: settings.discoveryIntervalMs,
        gossipTimeout: settings.gossipTimeoutSeconds,
        keepAliveInterval: settings.keepAliveIntervalMs,
        keepAliveTimeout: settings.keepAliveTimeoutMs,
        connectionName: settings.connectionName,
        nodePreference: 'leader',
      })
    }),
  )
  t.pass('for generated settings')
})

t.test('what is shown is the same address without its password', async t => {
  t.equal(describeSettings(eventStoreDBSettings('esdb://localhost')), 'esdb://localhost:2113')
  t.equal(
    describeSettings(eventStoreDBSettings('esdb+discover://admin:S3cret@c?namespace=other&tlsCAFile=a%20b')),
    'esdb+discover://admin:***@c:2113?tlsCaFile=a%20b&namespace=other',
  )
  fc.assert(
    fc.property(someSettings, settings => {
      const shown = describeSettings(settings)
      const password = settings.password === null ? null : '***'
      deepStrictEqual(eventStoreDBSettings(shown), { ...settings, password })
    }),
  )
  t.pass('for generated settings')
})
