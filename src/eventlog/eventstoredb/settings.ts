/**
 * The address of an EventStoreDB log, as EventStoreDB's users know it, and the connection string that the client gets.
 * The client only warns of a key that it does not know, takes some and does nothing with them, and reads a password with
 * a special character as something else (PITFALLS E16): so addresses are checked here, and its string is written here.
 */
import { z } from 'zod'

export interface EventStoreDBSettings {
  readonly hosts: readonly { readonly address: string; readonly port: number }[]
  /** The one host is a name that stands for the nodes of a cluster. */
  readonly discover: boolean
  readonly tls: boolean
  /** Paths of PEM files, relative to the working directory. */
  readonly tlsCaFile: string | null
  readonly userCertFile: string | null
  readonly userKeyFile: string | null
  readonly maxDiscoverAttempts: number
  readonly discoveryIntervalMs: number
  readonly gossipTimeoutSeconds: number
  readonly keepAliveIntervalMs: number
  readonly keepAliveTimeoutMs: number
  readonly connectionName: string
  readonly username: string | null
  readonly password: string | null
  /** What the names of our streams begin with. */
  readonly namespace: string
}

/** The address cannot be used. The message says why, and holds nothing of what may be a password. */
export class LogAddressError extends Error {
  readonly code = 'config'
}

const DEFAULT_PORT = 2113
const KEEP_ALIVE_MS_MIN = 10_000

const flag = z.enum(['true', 'false'], 'must be true or false').transform(text => text === 'true')
const path = z.string().min(1, 'must be the path of a PEM file')
const whole = (min: number, max: number, unit: string) =>
  z
    .string()
    .regex(/^\d{1,9}$/, `must be a whole number of ${unit}`)
    .transform(Number)
    .pipe(z.number().min(min, `must be ${min} ${unit} at least`).max(max, `must be ${max} ${unit} at most`))
const keepAlive = whole(0, 3_600_000, 'milliseconds').refine(
  ms => ms >= KEEP_ALIVE_MS_MIN,
  `must be ${KEEP_ALIVE_MS_MIN} milliseconds at least: servers cut off who asks more often`,
)

/** What may stand behind the question mark. The client's defaults are patient; these end while a caller still waits. */
const optionsSchema = z.object({
  tls: flag.default(true),
  tlsCaFile: path.nullable().default(null),
  userCertFile: path.nullable().default(null),
  userKeyFile: path.nullable().default(null),
  maxDiscoverAttempts: whole(1, 100, 'attempts').default(3),
  discoveryInterval: whole(1, 60_000, 'milliseconds').default(100),
  gossipTimeoutSeconds: whole(1, 60, 'seconds').default(2),
  keepAliveInterval: keepAlive.default(KEEP_ALIVE_MS_MIN),
  keepAliveTimeout: keepAlive.default(KEEP_ALIVE_MS_MIN),
  // It travels in a header.
  connectionName: z
    .string()
    .regex(/^[\x21-\x7e]([\x20-\x7e]{0,126}[\x21-\x7e])?$/, 'must be 1 to 128 visible ASCII characters')
    .default('rollcall'),
  namespace: z
    .string()
    .regex(
      /^[a-z0-9][a-z0-9_]{0,31}$/,
      'must be 1 to 32 small letters, digits and underscores, and begin with no underscore',
    )
    .default('rollcall'),
})
type Options = z.output<typeof optionsSchema>
type OptionKey = keyof Options
const KEYS = Object.keys(optionsSchema.shape) as OptionKey[]

/** Keys of the client that are refused, and what to do instead. */
const REFUSED = new Map(
  Object.entries({
    nodepreference: 'leave it out: Rollcall reads and writes on the leader, or it would answer what is stale',
    throwonappendfailure: 'leave it out: Rollcall has to see every append that failed',
    defaultdeadline: 'leave it out: Rollcall bounds each of its calls by itself',
    tlsverifycert:
      'leave it out: the client always verifies. Name your authority with tlsCaFile, or go without TLS by tls=false',
    gossiptimeout:
      'write gossipTimeoutSeconds: some clients take gossipTimeout in seconds, others in milliseconds',
  }),
)

/** As the client compares keys: case, dashes and underscores do not count. */
const flat = (key: string): string => key.trim().toLowerCase().replaceAll(/[_-]/g, '')
const KEY_BY_FLAT = new Map<string, OptionKey>(KEYS.map(key => [flat(key), key]))

/** Scheme, what stands before the path, query. */
const ADDRESS = /^(esdb|esdb\+discover):\/\/([^/?#]*)\/?(?:\?([^#]*))?$/i
const HOST = /^[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?$/i

/**
 * The settings in an address: `esdb://[user:password@]host[:port][,host[:port]…][?key=value&…]`, or
 * `esdb+discover://…` with one name for a whole cluster.
 *
 * @throws LogAddressError
 */
export function eventStoreDBSettings(address: string): EventStoreDBSettings {
  const [, scheme, authority, query] = ADDRESS.exec(address.trim()) ?? []
  // What follows the hosts may be the rest of a password that was not encoded; none of it is repeated.
  if (scheme === undefined || authority === undefined || query?.includes('@'))
    throw wrong(
      'it must read esdb://host:2113?key=value, the special characters of passwords and values encoded (@ as %40)',
    )
  const at = authority.lastIndexOf('@')
  if (authority.indexOf('@') !== at) throw wrong('an @ in a password must be written as %40')
  const discover = /discover/i.test(scheme)
  const hosts = authority
    .slice(at + 1)
    .split(',')
    .map(hostOf)
  if (discover && hosts.length > 1)
    throw wrong('esdb+discover:// takes one name; give several hosts with esdb://')
  const options = optionsOf(query ?? '')
  const credentials = at < 0 ? { username: null, password: null } : credentialsOf(authority.slice(0, at))
  assertTogether(options, credentials.username !== null)
  const { discoveryInterval, keepAliveInterval, keepAliveTimeout, ...others } = options
  return {
    hosts,
    discover,
    ...others,
    discoveryIntervalMs: discoveryInterval,
    keepAliveIntervalMs: keepAliveInterval,
    keepAliveTimeoutMs: keepAliveTimeout,
    ...credentials,
  }
}

function hostOf(text: string): { address: string; port: number } {
  if (text.includes('[')) throw wrong('the client takes no IPv6 addresses; give the host by its name')
  const [address = '', port, ...rest] = text.split(':')
  // What stands here may be a password whose @ was forgotten, so none of it is repeated.
  if (!HOST.test(address) || rest.length > 0)
    throw wrong('a host must be a name or an IPv4 address, and host:port')
  const number = port === undefined ? DEFAULT_PORT : /^\d{1,5}$/.test(port) ? Number(port) : 0
  if (number < 1 || number > 65_535) throw wrong('a port must be a number from 1 to 65535')
  return { address, port: number }
}

function credentialsOf(text: string): { username: string; password: string } {
  const colon = text.indexOf(':')
  const username = decoded(text.slice(0, Math.max(0, colon)), 'the user')
  const password = decoded(text.slice(colon + 1), 'the password')
  if (colon < 0 || username === '' || password === '') throw wrong('before the @ there must be user:password')
  if (username.includes(':')) throw wrong('the name of a user cannot hold a colon')
  return { username, password }
}

function optionsOf(query: string): Options {
  const given: Partial<Record<OptionKey, string>> = {}
  for (const pair of query.split('&')) {
    if (pair === '') continue
    const [name = '', value] = pair.split(/=(.*)/s)
    const key = KEY_BY_FLAT.get(flat(name))
    const why = REFUSED.get(flat(name))
    if (why !== undefined) throw wrong(`${name} is not taken; ${why}`)
    if (key === undefined) throw wrong(`${name} is no key of it; there are ${KEYS.join(', ')}`)
    if (key in given) throw wrong(`${key} is given twice`)
    if (!value) throw wrong(`${key} has no value; write ${key}=value`)
    given[key] = decoded(value, key)
  }
  const parsed = optionsSchema.safeParse(given)
  if (!parsed.success)
    throw wrong(parsed.error.issues.map(({ path, message }) => `${path.join('.')} ${message}`).join('; '))
  return parsed.data
}

/** What makes sense only together. The client passes over these mistakes. */
function assertTogether({ tls, tlsCaFile, userCertFile, userKeyFile }: Options, hasUser: boolean): void {
  if ((userCertFile === null) !== (userKeyFile === null))
    throw wrong('userCertFile and userKeyFile belong together; give both or none')
  if (tls) return
  if (hasUser)
    throw wrong('a password is not sent without TLS; leave out tls=false, or the user and the password')
  if (tlsCaFile !== null || userCertFile !== null)
    throw wrong('certificates have no use without TLS; leave out tls=false, or the files')
}

function decoded(text: string, what: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw wrong(`${what} is not percent-encoded; write % as %25`)
  }
}

const wrong = (why: string): LogAddressError =>
  new LogAddressError(`the address of the log cannot be used: ${why}`)

/** What the client is connected with. It holds the password: for the client alone. */
export function connectionString(settings: EventStoreDBSettings): string {
  const { tls, tlsCaFile, userCertFile, userKeyFile } = settings
  return written(settings, settings.password, [
    ['tls', tls],
    ['tlsCAFile', tlsCaFile],
    ['userCertFile', userCertFile],
    ['userKeyFile', userKeyFile],
    ['maxDiscoverAttempts', settings.maxDiscoverAttempts],
    ['discoveryInterval', settings.discoveryIntervalMs],
    ['gossipTimeout', settings.gossipTimeoutSeconds],
    ['keepAliveInterval', settings.keepAliveIntervalMs],
    ['keepAliveTimeout', settings.keepAliveTimeoutMs],
    ['connectionName', settings.connectionName],
    ['nodePreference', 'leader'],
  ])
}

/** The address for people and logs: what differs from the defaults, without the password. */
export function describeSettings(settings: EventStoreDBSettings): string {
  const { discoveryIntervalMs, keepAliveIntervalMs, keepAliveTimeoutMs } = settings
  const options: Options = {
    ...settings,
    discoveryInterval: discoveryIntervalMs,
    keepAliveInterval: keepAliveIntervalMs,
    keepAliveTimeout: keepAliveTimeoutMs,
  }
  const defaults = optionsSchema.parse({})
  return written(
    settings,
    settings.password === null ? null : '***',
    KEYS.filter(key => options[key] !== defaults[key]).map(key => [key, options[key]]),
  )
}

function written(
  { discover, hosts, username }: EventStoreDBSettings,
  password: string | null,
  options: readonly (readonly [string, string | number | boolean | null])[],
): string {
  const user =
    username === null || password === null
      ? ''
      : `${encodeURIComponent(username)}:${encodeURIComponent(password)}@`
  const query = options
    .filter(([, value]) => value !== null)
    .map(([key, value]) => `${key}=${encodeURIComponent(String(value))}`)
    .join('&')
  const at = hosts.map(({ address, port }) => `${address}:${port}`).join(',')
  return `${discover ? 'esdb+discover' : 'esdb'}://${user}${at}${query && `?${query}`}`
}
