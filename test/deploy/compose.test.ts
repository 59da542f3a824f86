/**
 * The compose file says what it should. There is no Docker here: that containers start from it is not tried. The
 * commands in it that are ours are.
 */
import { execFile } from 'node:child_process'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Ajv2020 } from 'ajv/dist/2020.js'
import t from 'tap'
import { parse, stringify } from 'yaml'
import { buildProgram } from '../../src/cli/program.ts'
import { keysRequired, ROLES, readEnvironment, serviceConfig } from '../../src/runtime/config.ts'
import {
  type ComposeService,
  composeText,
  readCompose,
  readRepositoryFile,
  resolvedCompose,
  variablesOf,
} from './compose-file.ts'

/** What passwords are made of, at its worst. */
const POSTGRES_PASSWORD = `a$b "c'd@e/f:g#h%20`
const compose = readCompose({ POSTGRES_PASSWORD })
const services = Object.entries(compose.services)
const ours = services.filter(([, service]) => service.build !== undefined)
const { version } = JSON.parse(readRepositoryFile('package.json')) as { version: string }

const runsOnce = ({ restart }: ComposeService): boolean => restart === 'no'

t.test('it is a compose file', async t => {
  const validate = new Ajv2020({ allErrors: true }).compile(
    JSON.parse(readRepositoryFile('test/fixtures/compose-spec/compose-spec.json')),
  )
  t.ok(validate(resolvedCompose({ POSTGRES_PASSWORD })), JSON.stringify(validate.errors))

  const spoiled = parse(composeText, { merge: true })
  spoiled.services.api.healthcheck.tests = ['CMD', 'true']
  t.notOk(validate(resolvedCompose({ POSTGRES_PASSWORD }, stringify(spoiled))), 'a wrong key is found')
})

t.test('passwords are required and have no defaults', async t => {
  t.throws(() => readCompose({}), /POSTGRES_PASSWORD: copy \.env\.example to \.env/)
  t.throws(() => readCompose({ POSTGRES_PASSWORD: '' }), /POSTGRES_PASSWORD/, 'an empty one is none')
  const secret = /PASS|SECRET|TOKEN|KEY|CREDENTIAL/
  const variables = variablesOf(composeText)
  t.ok(variables.some(({ name }) => secret.test(name)))
  for (const { name, fallback } of variables)
    if (secret.test(name)) t.equal(fallback, null, `${name} has no default`)
  for (const [name, { environment }] of services)
    for (const [key, value] of Object.entries(environment)) {
      if (secret.test(key)) t.equal(value, POSTGRES_PASSWORD, `${name}: ${key} comes from outside`)
      else t.notMatch(value, POSTGRES_PASSWORD, `${name}: ${key}`)
    }
})

t.test('.env.example names each variable, and no password', async t => {
  const example = readRepositoryFile('.env.example')
  const named = [...example.matchAll(/^(#?)([A-Z_]+)=(.*)$/gm)]
  const variables = new Map(variablesOf(composeText).map(({ name, fallback }) => [name, fallback]))
  t.same(named.map(([, , name]) => name).sort(), [...variables.keys()].sort())
  for (const [, comment, name, value] of named) {
    const fallback = variables.get(name!)
    t.equal(comment, fallback === null ? '' : '#', `${name}: what has a default is a comment`)
    t.equal(value, fallback ?? '', `${name}: its default`)
  }
  t.match(readRepositoryFile('.gitignore'), /^\.env$/m, 'the copy is not committed')
})

t.test('every service is asked whether it is ready, or runs once', async t => {
  for (const [name, service] of services) {
    t.ok(runsOnce(service) !== (service.healthcheck !== undefined), name)
    if (!runsOnce(service)) t.equal(service.restart, 'unless-stopped', `${name} is started again`)
    for (const [other, { condition }] of Object.entries(service.depends_on))
      t.equal(
        condition,
        runsOnce(compose.services[other]!) ? 'service_completed_successfully' : 'service_healthy',
        `${name} waits for ${other}`,
      )
  }
})

t.test('the one port that is published is that of the API, on loopback', async t => {
  t.same(
    services.filter(([, { ports }]) => ports.length > 0).map(([name]) => name),
    ['api'],
  )
  t.same(compose.services.api?.ports, ['127.0.0.1:8080:8080'])
  t.same(readCompose({ POSTGRES_PASSWORD, API_PORT: '9000' }).services.api?.ports, ['127.0.0.1:9000:8080'])
  for (const [name, { networks }] of services)
    t.same(
      networks.filter(network => !compose.networks[network]?.internal),
      name === 'api' ? ['front'] : [],
      `${name} cannot be reached from outside`,
    )
})

t.test('every image is pinned', async t => {
  for (const [name, { image, build }] of services)
    if (build === undefined) t.match(image, /^[a-z/]+:\d+\.\d+(\.\d+)?(-[a-z]+)?$/, name)
    else t.equal(image, `rollcall:${version}`, `${name} has the version of package.json`)
})

t.test('data is in volumes with names', async t => {
  const mounts = services.flatMap(([, { volumes }]) => volumes.map(volume => volume.split(':')))
  t.same(mounts.map(([name]) => name).sort(), Object.keys(compose.volumes).sort())
  t.same(
    Object.fromEntries(mounts),
    {
      'eventstoredb-data': '/var/lib/eventstore',
      'postgres-data': '/var/lib/postgresql',
      'kafka-data': '/var/lib/kafka/data',
    },
    'where the images have them',
  )
  t.equal(compose.services.kafka?.environment.KAFKA_LOG_DIRS, '/var/lib/kafka/data')
})

t.test('on one Kafka node every internal topic has one replica', async t => {
  const factors = Object.entries(compose.services.kafka!.environment).filter(([name]) =>
    /REPLICATION_FACTOR$|MIN_ISR$/.test(name),
  )
  t.equal(factors.length, 5)
  for (const [name, value] of factors) t.equal(value, '1', name)
})

t.test('our services are given only what the program knows', async t => {
  t.ok(ours.length > ROLES.length)
  for (const [name, { environment }] of ours)
    for (const variable of Object.keys(environment).filter(key => key !== 'PGPASSWORD'))
      t.ok(
        Object.values(readEnvironment({ [variable]: 'given' }))
          .flat()
          .includes('given'),
        `${name}: ${variable} is read`,
      )
})

/** The subcommand that a service runs, with its options parsed. */
function commandOf({ command }: ComposeService) {
  const [name, ...args] = command.length > 0 ? command : ['serve']
  const found = buildProgram().commands.find(one => one.name() === name)
  if (!found) throw new Error(`no command ${name}`)
  const { unknown, operands } = found.parseOptions(args)
  return { name, strange: [...unknown, ...operands], options: found.opts() }
}

t.test('their commands and settings are accepted, and every role is there', async t => {
  const roles: string[] = []
  for (const [name, service] of ours) {
    const { name: command, strange, options } = commandOf(service)
    t.same(strange, [], `${name}: ${command} knows the options`)
    const config = serviceConfig(options, readEnvironment(service.environment))
    t.equal(command, runsOnce(service) ? 'migrate' : 'serve', name)
    if (command !== 'serve') continue
    t.equal(config.port, 8080, `${name} listens where it is asked for its health`)
    t.same(config.roles, [name], `${name} has its role`)
    roles.push(...config.roles)
    t.ok(keysRequired(serviceConfig(readEnvironment(service.environment))), `${name} would ask for keys`)
    t.equal(keysRequired(config), !config.roles.includes('api'), 'open only where the command says so')
  }
  t.same(roles.sort(), [...ROLES].sort())
})

t.test('the health check of our services asks /readyz and says what it hears', async t => {
  const asked: (string | undefined)[] = []
  let status = 200
  const server = createServer((request, response) => {
    asked.push(request.url)
    response.writeHead(status).end()
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo

  const [kind, program, ...args] = compose.services.projector!.healthcheck!.test
  t.same([kind, program], ['CMD', 'node'])
  const check = () =>
    new Promise(resolve =>
      execFile(
        process.execPath,
        args.map(arg => arg.replace(':8080/', `:${port}/`)),
        error => resolve(error?.code ?? 0),
      ),
    )
  t.equal(await check(), 0, 'ready')
  status = 503
  t.equal(await check(), 1, 'not ready')
  t.same(asked, ['/readyz', '/readyz'])
  server.closeAllConnections()
  await new Promise(resolve => server.close(resolve))
  t.equal(await check(), 1, 'nobody there')
})
