/**
 * The document of the API as a check: every answer has a status, a media type and a body that the document names for its
 * route. The document is that of the same sources, made once in a process.
 */
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import pino from 'pino'
import { buildApp } from '../../src/api/app.ts'
import type { ApiDocument, ApiOperation } from '../../src/api/complete-document.ts'
import type { AppParts } from '../../src/api/parts.ts'
import { CATALOGUE, type ProblemCode } from '../../src/api/problems.ts'

export interface CheckedAnswer {
  status: number
  type: string | undefined
  body: unknown
}

let made: Promise<AnswerSchemas> | null = null

/** The check, made when it is asked for first. */
export function answerSchemas(): Promise<AnswerSchemas> {
  made ??= apiDocument().then(document => new AnswerSchemas(document))
  return made
}

/** The document that these sources serve. */
export async function apiDocument(): Promise<ApiDocument> {
  const app = buildApp('api', { logger: pino({ level: 'silent' }) } as AppParts)
  const { body } = await app.inject('/openapi.json')
  await app.close()
  return JSON.parse(body) as ApiDocument
}

/** Answered where no route takes a request, or no request came about. */
const WITHOUT_ROUTE: ReadonlySet<string> = new Set<ProblemCode>([
  'route_not_found',
  'method_not_allowed',
  'invalid_request',
  'request_timeout',
  'headers_too_large',
  'shutting_down',
])

export class AnswerSchemas {
  readonly #document: ApiDocument
  readonly #paths: { path: string; matches: RegExp }[]
  // Formats are given with patterns that say more.
  readonly #ajv = new Ajv2020({ strict: false, validateFormats: false })
  readonly #checks = new Map<string, ValidateFunction>()

  constructor(document: ApiDocument) {
    this.#document = document
    this.#ajv.addSchema(document, 'document')
    this.#paths = Object.keys(document.paths)
      // Those without parameters first.
      .sort((one, other) => one.split('{').length - other.split('{').length)
      .map(path => ({ path, matches: new RegExp(`^${path.replaceAll(/\{\w+\}/g, '[^/]+')}$`) }))
  }

  /** What is wrong with an answer; null where it is as documented. */
  fault(method: string, target: string, answer: CheckedAnswer): string | null {
    const of = target.split('?')[0] ?? ''
    const path = this.#paths.find(({ matches }) => matches.test(of))?.path
    const operation = path === undefined ? undefined : this.#document.paths[path]?.[method.toLowerCase()]
    if (path === undefined || operation === undefined || codeOf(answer.body) === 'route_not_found')
      return faultWithoutRoute(answer)
    const name = ['document#', 'paths', path, method.toLowerCase(), 'responses']
    return this.#faultOf(operation, name, answer)
  }

  #faultOf(operation: ApiOperation, name: string[], { status, type, body }: CheckedAnswer): string | null {
    const response = operation.responses[status]
    if (!response) return `the status ${status} is not documented`
    if (!response.content) return body === null ? null : `a body is not documented for ${status}`
    const media = type?.split(';')[0]?.trim() ?? ''
    if (!response.content[media]) return `${media || 'no media type'} is not documented for ${status}`
    if (!/json$/.test(media)) return null
    const check = this.#check([...name, String(status), 'content', media, 'schema'])
    return check(body) ? null : this.#ajv.errorsText(check.errors, { dataVar: 'body' })
  }

  #check(name: string[]): ValidateFunction {
    const pointer = name.map(part => part.replaceAll('~', '~0').replaceAll('/', '~1')).join('/')
    let check = this.#checks.get(pointer)
    if (!check) {
      check = this.#ajv.compile({ $ref: encodeURI(pointer) })
      this.#checks.set(pointer, check)
    }
    return check
  }
}

const codeOf = (body: unknown): unknown =>
  typeof body === 'object' && body !== null && 'code' in body ? body.code : undefined

function faultWithoutRoute({ status, body }: CheckedAnswer): string | null {
  const code = codeOf(body)
  if (typeof code !== 'string' || !WITHOUT_ROUTE.has(code)) return `the route is not documented`
  const expected = CATALOGUE[code as ProblemCode].status
  return status === expected ? null : `${code} came with ${status}`
}
