/** The problems that a route can answer, as closed JSON schemas, one for each status. */
import { CATALOGUE, type ProblemCode } from './problems.ts'

export const PROBLEM_TYPE = 'application/problem+json'

/** Answered before a route is found, where a request does not become a whole one, and while the service stops. */
const OF_ANY_REQUEST = [
  'invalid_request',
  'request_timeout',
  'headers_too_large',
  'shutting_down',
  'internal_error',
] as const satisfies ProblemCode[]
/** Who asks may not, or asks too much; and what every route of the API stands on may be away or busy. */
const OF_ANY_SCOPE = [
  'unauthenticated',
  'missing_scope',
  'rate_limited',
  'overloaded',
  'log_unavailable',
  'read_model_unavailable',
] as const satisfies ProblemCode[]
const OF_ANY_BODY = [
  'invalid_json',
  'json_too_deep',
  'number_not_exact',
  'forbidden_key',
  'body_too_large',
  'unsupported_media_type',
] as const satisfies ProblemCode[]

export interface RouteKind {
  hasScope: boolean
  /** It is about the whole installation. */
  isWhole: boolean
  takesBody: boolean
}

/** What any route of this kind can answer. */
export const commonProblems = ({ hasScope, isWhole, takesBody }: RouteKind): ProblemCode[] => [
  ...OF_ANY_REQUEST,
  ...(hasScope ? OF_ANY_SCOPE : []),
  ...(isWhole ? (['whole_installation'] as const) : []),
  ...(takesBody ? OF_ANY_BODY : []),
]

export interface ProblemAnswer {
  status: number
  /** Its name among the components; stable as long as the codes of the route are. */
  name: string
  description: string
  schema: object
}

/** The problems of one operation, by status. */
export function problemAnswers(
  operationId: string,
  kind: RouteKind,
  own: readonly ProblemCode[],
): ProblemAnswer[] {
  const common = commonProblems(kind)
  const all = [...new Set([...common, ...own])].sort()
  const statuses = [...new Set(all.map(statusOf))].sort()
  return statuses.map(status => {
    const codes = all.filter(code => statusOf(code) === status)
    return {
      status,
      name: nameOf(operationId, status, codes, common),
      description: codes.map(code => `- \`${code}\`: ${CATALOGUE[code].title}`).join('\n'),
      schema: problemSchema(status, codes),
    }
  })
}

const statusOf = (code: ProblemCode): number => CATALOGUE[code].status
const capital = (text: string): string => text.slice(0, 1).toUpperCase() + text.slice(1)

function nameOf(
  operationId: string,
  status: number,
  codes: readonly ProblemCode[],
  common: readonly ProblemCode[],
): string {
  const [first] = codes
  if (codes.length === 1 && first) return `${first.split('_').map(capital).join('')}Problem`
  if (!codes.every(code => common.includes(code))) return `${capital(operationId)}Problem${status}`
  // These have more codes on some kinds of routes than on others.
  const kind = codes.includes('invalid_json') ? 'Body' : codes.includes('whole_installation') ? 'Whole' : ''
  return `${kind}Problem${status}`
}

const problemSchema = (status: number, codes: readonly ProblemCode[]) => ({
  type: 'object',
  properties: {
    type: { type: 'string', enum: codes.map(code => `urn:rollcall:problem:${code}`) },
    title: { type: 'string', description: 'What the code means.' },
    status: { type: 'integer', const: status },
    code: { type: 'string', enum: codes },
    detail: { type: 'string', description: 'What was wrong in this case, and where.' },
    errors: {
      type: 'array',
      minItems: 1,
      items: { $ref: '#/components/schemas/FieldError' },
      description: 'The fields at fault.',
    },
  },
  required: ['type', 'title', 'status', 'code', 'detail'],
  additionalProperties: false,
})
