/** The document of the API: it is whole, closed and true. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Ajv2020 } from 'ajv/dist/2020.js'
import t from 'tap'
import { SCOPES } from '../../src/api/access.ts'
import { type ApiDocument, operationsOf } from '../../src/api/complete-document.ts'
import { HEADERS, originHeaders } from '../../src/api/schemas/headers.ts'
import { answerSchemas, apiDocument } from '../support/answer-schemas.ts'
import { Api, registeredRoutes, startApi } from './fixture.ts'

const document = await apiDocument()
const operations = [...operationsOf(document)]

type Schema = Record<string, unknown>
const isObject = (value: unknown): value is Schema =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** Every schema with its place, through properties, items and alternatives. */
function* schemasIn(schema: unknown, place: string): Generator<{ schema: Schema; place: string }> {
  if (!isObject(schema)) return
  yield { schema, place }
  for (const [name, inner] of Object.entries((schema.properties as Schema) ?? {}))
    yield* schemasIn(inner, `${place}.${name}`)
  yield* schemasIn(schema.items, `${place}[]`)
  yield* schemasIn(schema.additionalProperties, `${place}.*`)
  for (const kind of ['anyOf', 'oneOf', 'allOf'])
    for (const inner of (schema[kind] as unknown[]) ?? []) yield* schemasIn(inner, place)
}

const components = Object.entries(document.components.schemas).flatMap(([name, schema]) => [
  ...schemasIn(schema, name),
])
const answers = operations.flatMap(({ route, operation }) =>
  Object.entries(operation.responses).flatMap(([status, { content = {} }]) =>
    Object.entries(content).map(([type, { schema }]) => ({ route, status, type, schema })),
  ),
)

t.test('it has every route of the application and no other, each with a name of its own', async t => {
  t.strictSame(operations.map(({ route }) => route).sort(), await registeredRoutes())
  const ids = operations.map(({ operation }) => operation.operationId)
  for (const [index, id] of ids.entries()) t.match(id, /^[a-z][a-zA-Z]+$/, operations[index]!.route)
  t.equal(new Set(ids).size, ids.length)
})

t.test('every route says whom it is for', async t => {
  for (const { route, operation } of operations) {
    const [scope] = operation.security?.[0]?.bearer ?? []
    t.equal(operation.tags?.length, 1, route)
    if (/ \/v1\//.test(route)) t.ok(SCOPES.includes(scope as never), `${route}: ${scope}`)
  }
})

t.test('every answer is documented by its status, with its own schema', async t => {
  for (const { route, operation } of operations) {
    const statuses = Object.keys(operation.responses)
    t.notOk(statuses.includes('default'), route)
    t.ok(statuses.some(status => /^2/.test(status)) && statuses.includes('500'), route)
    for (const [status, { description }] of Object.entries(operation.responses))
      t.notMatch(description, /^(Default Response)?$/, `${route} ${status}`)
  }
  for (const { route, status, type, schema } of answers) {
    t.ok(isObject(schema) && Object.keys(schema).length > 0, `${route} ${status} ${type}`)
    if (Number(status) >= 400 && !(route === 'GET /readyz' && type === 'application/json'))
      t.equal(type, 'application/problem+json', `${route} ${status}`)
  }
})

t.test('answers are closed, but for what users hand in as they like', async t => {
  const open = components.filter(({ schema }) => {
    const { $comment, description, default: _, ...says } = schema
    return Object.keys(says).length === 0 || (says.type === 'object' && says.additionalProperties !== false)
  })
  const places = [...new Set(open.map(({ place }) => place))].sort()
  const OF_USERS = /(^|\.)(payload|result|context|Labels|labels)$/
  t.strictSame(
    places.filter(place => !OF_USERS.test(place)),
    [],
  )
  t.ok(places.includes('Task.payload') && places.includes('ClaimedTask.context'), 'they were found')
})

t.test('it is itself a schema that can be used, without a reference that leads nowhere', async t => {
  const ajv = new Ajv2020({ strict: false, validateFormats: false })
  ajv.addSchema(document, 'document')
  for (const name of Object.keys(document.components.schemas))
    t.doesNotThrow(() => ajv.compile({ $ref: `document#/components/schemas/${name}` }), name)
  for (const [, name] of JSON.stringify(document).matchAll(/"#\/components\/schemas\/([^"]+)"/g))
    if (!(name! in document.components.schemas)) t.fail(`${name} is not there`)
})

t.test('it is served as it is, with a page to read it that needs nothing from elsewhere', async t => {
  const { api } = await startApi(t)
  const get = async (path: string) => {
    const answer = await fetch(api.url + path)
    return { status: answer.status, headers: answer.headers, text: await answer.text() }
  }
  const served = await get('/openapi.json')
  t.strictSame(JSON.parse(served.text), document)
  t.match(served.headers.get('content-type'), /^application\/json/)
  const { version } = JSON.parse(
    readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
  ) as ApiDocument & { version: string }
  t.match(document, { openapi: /^3\.1\./, info: { title: 'Rollcall', version } })

  const page = await get('/docs')
  t.match(page, { status: 200, text: /<html/ })
  t.match(page.headers.get('content-security-policy'), /default-src 'self'/)
  const sources = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, source]) => source!)
  t.ok(sources.length > 3)
  for (const source of sources) {
    t.match(source, /^\.?\/(?!\/)/, 'from this service')
    t.equal((await get(new URL(source, `${api.url}/docs`).pathname)).status, 200, source)
  }
})

t.test('every documented header field is checked', async t => {
  const { api } = await startApi(t)
  const { taskId } = await api.submit()
  /** What no schema refuses: it is passed over where it cannot be read, as its standard says. */
  const lenient = ['traceparent', 'prefer', 'if-none-match', 'last-event-id']
  const bodies: Record<string, object> = {
    'POST /v1/tasks': { type: 'a' },
    'POST /v1/tasks/batch': { tasks: [{ type: 'a' }] },
    'POST /v1/tasks/:id/notes': { note: 'x' },
    'POST /v1/tasks/:id/cancel': {},
    'POST /v1/tasks/:id/retry': {},
  }
  for (const name of [...Object.keys(HEADERS), ...Object.keys(originHeaders)].filter(
    one => !lenient.includes(one),
  ))
    for (const { route, operation } of operations) {
      const body = bodies[route]
      if (!body || !operation.parameters?.some(one => one.in === 'header' && one.name === name)) continue
      const [, path = ''] = route.split(' ')
      const answer = await api.post(path.replace(':id', taskId), body, { [name]: 'no,\tnot so' })
      t.match(answer, { status: 400, body: { code: 'invalid_request' } }, `${route} ${name}`)
    }
})

t.test('the check of answers finds what is not documented', async t => {
  const check = await answerSchemas()
  const { api } = await startApi(t)
  const task = await api.submit()
  const path = `/v1/tasks/${task.taskId}`
  const fault = (status: number, body: unknown, type = 'application/json', method = 'GET', at = path) =>
    check.fault(method, at, { status, type, body })
  const notFound = {
    type: 'urn:rollcall:problem:not_found',
    title: 'No task has this id.',
    status: 404,
    code: 'not_found',
    detail: 'No task has this id.',
  }
  const problem = 'application/problem+json'
  t.equal(fault(200, task), null)
  t.equal(fault(404, notFound, problem), null)
  t.match(fault(200, { ...task, extra: 1 }), /must NOT have additional properties/)
  const { hash: _, ...lacking } = task
  t.match(fault(200, lacking), /must have required property 'hash'/)
  t.match(fault(200, { ...task, createdAt: 'yesterday' }), /createdAt/)
  t.match(fault(202, task), /the status 202 is not documented/)
  t.match(fault(200, task, 'text/html'), /text\/html is not documented/)
  t.match(fault(404, { ...notFound, code: 'dead_letter_not_found' }, problem), /code/)
  t.match(fault(404, { ...notFound, hint: 'none' }, problem), /additional properties/)
  t.match(fault(200, task, undefined, 'PATCH'), /not documented/)
  t.match(fault(200, {}, undefined, 'GET', '/v1/elsewhere'), /not documented/)
  const none = { ...notFound, type: 'urn:rollcall:problem:route_not_found', code: 'route_not_found' }
  t.equal(fault(404, none, problem, 'GET', '/v1/elsewhere'), null)
})

t.test('the client of the tests refuses what is not documented', async t => {
  let answered = { status: 200, body: { status: 'ok' } as object }
  const server = createServer((_request, response) => {
    response.writeHead(answered.status, { 'content-type': 'application/json' })
    response.end(JSON.stringify(answered.body))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => server.close())
  const api = new Api(t, `http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  t.equal((await api.get('/livez')).status, 200)
  answered = { status: 200, body: { status: 'ok', extra: 1 } }
  await t.rejects(api.get('/livez'), { message: /must NOT have additional properties/ })
  answered = { status: 202, body: { status: 'ok' } }
  await t.rejects(api.get('/livez'), { message: /the status 202 is not documented/ })
})

t.test('the messages of a stream are as documented', async t => {
  const { api } = await startApi(t)
  const { taskId } = await api.submit()
  await api.post(`/v1/tasks/${taskId}/cancel`, {})
  const messages = operations.find(({ route }) => route === 'GET /v1/tasks/:id/events')!.operation[
    'x-messages'
  ]!
  const ajv = new Ajv2020({ strict: false, validateFormats: false })
  ajv.addSchema(document, 'document')
  const { text } = await api.get(`/v1/tasks/${taskId}/events`)
  const told = [...text.matchAll(/^event: (\w+)$[\s\S]*?^data: (.+)$/gm)]
  t.strictSame(
    told.map(([, event]) => event),
    ['task', 'end'],
  )
  for (const [, event, data] of told) {
    const { $ref } = messages[event!] as { $ref: string }
    const check = ajv.compile({ $ref: `document${$ref}` })
    t.ok(check(JSON.parse(data!)), ajv.errorsText(check.errors))
  }
})
