/** What the schemas of the routes do not say in the document: problems, header fields of answers, descriptions. */
import { STATUS_CODES } from 'node:http'
import { NAME_PATTERN } from '../domain/limits.ts'
import { ANSWER_HEADERS, type AnswerHeader, OPERATIONS, type Operation } from './operations.ts'
import { PROBLEM_TYPE, problemAnswers } from './problem-answers.ts'

/** An OpenAPI document, as far as this program has to do with it. */
export interface ApiDocument {
  openapi: string
  paths: Record<string, Record<string, ApiOperation>>
  components: { schemas: Record<string, unknown>; [kind: string]: unknown }
}

export interface ApiOperation {
  operationId?: string
  tags?: string[]
  security?: Record<string, string[]>[]
  parameters?: ApiParameter[]
  requestBody?: { required: boolean; content: Record<string, { schema: unknown }> }
  responses: Record<string, ApiResponse>
  /** The data of each kind of message of a stream. */
  'x-messages'?: Record<string, object>
}

export interface ApiParameter {
  name: string
  in: string
  required?: boolean
  description?: string
  schema: ParameterSchema
}

interface ParameterSchema {
  type?: string
  pattern?: string
  anyOf?: ParameterSchema[]
  propertyNames?: object
}

export interface ApiResponse {
  description: string
  headers?: Record<string, unknown>
  content?: Record<string, { schema: unknown }>
}

/** Each operation of a document, with its route as `GET /v1/tasks/:id`. */
export function* operationsOf(document: ApiDocument): Generator<{ route: string; operation: ApiOperation }> {
  for (const [path, item] of Object.entries(document.paths))
    for (const [method, operation] of Object.entries(item))
      yield { route: `${method.toUpperCase()} ${path.replaceAll(/\{(\w+)\}/g, ':$1')}`, operation }
}

/**
 * The document with what it lacks, in place.
 *
 * @param wholeRoutes those that are about the whole installation
 */
export function completeDocument(document: ApiDocument, wholeRoutes: ReadonlySet<string>): ApiDocument {
  for (const { route, operation } of operationsOf(document)) {
    const described = OPERATIONS[route]
    if (!described) continue
    for (const parameter of operation.parameters ?? []) completeParameter(parameter)
    describeAnswers(document, operation)
    addProblems(document, operation, described, wholeRoutes.has(route))
    addHeaders(operation, described)
    if (described.bodyIsOptional && operation.requestBody) operation.requestBody.required = false
    if (described.messages) operation['x-messages'] = messagesOf(described.messages)
  }
  dropUnused(document)
  return document
}

/** What a query can say and its schema, which is of what was read from it, cannot. */
function completeParameter(parameter: ApiParameter): void {
  const { name, schema } = parameter
  if (parameter.in !== 'query') return
  // Digits are read as a number.
  if (schema.type === 'integer') delete schema.pattern
  // One value, or several by repeating the parameter.
  const several = schema.anyOf?.find(({ type }) => type === 'array')
  if (several) parameter.schema = several
  if (name !== 'label') return
  // Each label is a parameter of its own.
  parameter.name = 'labels'
  parameter.description = 'Labels that the task has: label.<name>=<value>.'
  parameter.schema = { ...schema, propertyNames: { pattern: LABEL_PARAMETER.source } }
  Object.assign(parameter, { style: 'form', explode: true })
}

const LABEL_PARAMETER = new RegExp(NAME_PATTERN.source.replace('^', '^label\\.'))

/** Success answers, as their schemas describe them. */
function describeAnswers(document: ApiDocument, operation: ApiOperation): void {
  for (const [status, response] of Object.entries(operation.responses)) {
    const schema = response.content?.['application/json']?.schema as { $ref?: string } | undefined
    const name = schema?.$ref?.split('/').at(-1)
    const { description } = (document.components.schemas[name ?? ''] ?? {}) as { description?: string }
    if (response.description === UNDESCRIBED)
      response.description = description ?? STATUS_CODES[status] ?? status
  }
}

/** What the library says where nothing is said. */
const UNDESCRIBED = 'Default Response'

function addProblems(
  document: ApiDocument,
  operation: ApiOperation,
  { id, problems = [] }: Operation,
  isWhole: boolean,
): void {
  const kind = {
    hasScope: operation.security !== undefined,
    isWhole,
    takesBody: operation.requestBody !== undefined,
  }
  for (const { status, name, description, schema } of problemAnswers(id, kind, problems)) {
    document.components.schemas[name] = schema
    const own = operation.responses[status]
    operation.responses[status] = {
      description: own ? `${own.description}\n\n${description}` : description,
      content: { ...own?.content, [PROBLEM_TYPE]: { schema: { $ref: `#/components/schemas/${name}` } } },
    }
  }
}

function addHeaders(operation: ApiOperation, { gives = [] }: Operation): void {
  for (const [status, response] of Object.entries(operation.responses)) {
    const names: AnswerHeader[] = []
    if (/^[23]/.test(status)) names.push(...gives)
    if (status === '429' || status === '503') names.push('retry-after')
    if (status === '401') names.push('www-authenticate')
    if (names.length > 0) response.headers = Object.fromEntries(names.map(name => [name, headerOf(name)]))
  }
}

/** OpenAPI 3.1 has no word for the messages of a stream. */
const messagesOf = (messages: Readonly<Record<string, string>>) =>
  Object.fromEntries(
    Object.entries(messages).map(([event, name]) => [event, { $ref: `#/components/schemas/${name}` }]),
  )

const headerOf = (name: AnswerHeader) => ({
  ...ANSWER_HEADERS[name],
  schema: { type: 'string' },
})

/** Each named schema comes once for requests and once for answers; most are used in one of them. */
function dropUnused(document: ApiDocument): void {
  const schemas = document.components.schemas
  const used = new Set<string>()
  const collect = (part: unknown): void => {
    for (const [, name] of JSON.stringify(part).matchAll(/"#\/components\/schemas\/([^"]+)"/g))
      if (!used.has(name!)) {
        used.add(name!)
        collect(schemas[name!] ?? {})
      }
  }
  collect(document.paths)
  document.components = {
    ...document.components,
    schemas: Object.fromEntries(
      Object.entries(schemas)
        .filter(([name]) => used.has(name))
        .sort(([one], [other]) => (one < other ? -1 : 1)),
    ),
  }
}
