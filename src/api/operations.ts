/**
 * What the document says of each route beside its schemas: its name, its purpose, the problems it can answer and the
 * header fields it takes and gives.
 */
import type { ProblemCode } from './problems.ts'
import type { HeaderName } from './schemas/headers.ts'

export interface Operation {
  /** The name of the operation for generated clients; stable. */
  id: string
  summary: string
  description?: string
  /** Beside those that any route of its kind can answer; see `commonProblems`. */
  problems?: readonly ProblemCode[]
  /** It takes the header fields that say who asks. */
  origin?: true
  takes?: readonly HeaderName[]
  bodyIsOptional?: true
  /** Of a stream: the named schema of the data, for each kind of message. */
  messages?: Readonly<Record<string, string>>
  /** Header fields of its success answers. */
  gives?: readonly AnswerHeader[]
}

export const ANSWER_HEADERS = {
  etag: { description: 'Moves with every change of the task.', example: '"12.1767225600000"' },
  location: { description: 'Address of the task.', example: '/v1/tasks/0197…' },
  'preference-applied': { description: 'The wait that was applied.', example: 'wait=30' },
  'www-authenticate': { description: 'How to show who asks.', example: 'Bearer' },
  'retry-after': { description: 'Seconds to wait before asking again.', example: '1' },
} as const
export type AnswerHeader = keyof typeof ANSWER_HEADERS

/** Any command can be answered these, whatever it asks of a task. */
const COMMAND = ['conflict', 'too_large', 'set_aside'] as const satisfies ProblemCode[]
const OF_A_TASK = ['not_found', ...COMMAND] as const satisfies ProblemCode[]
const BY_PEOPLE = [
  'illegal_transition',
  'task_finished',
  'revision_mismatch',
  'content_too_large',
  'idempotency_key_reused',
] as const satisfies ProblemCode[]
/** What a worker's report of its attempt can be answered. */
const REPORT = [
  ...OF_A_TASK,
  'illegal_transition',
  'task_finished',
  'stale_attempt',
  'unknown_attempt',
  'not_lease_holder',
  'content_too_large',
] as const satisfies ProblemCode[]

const SEARCH = ['other_tenant', 'search_too_slow', 'content_too_large'] as const satisfies ProblemCode[]

const MESSAGES = { task: 'TaskMessage', resync: 'ResyncMessage', end: 'EndMessage' }

/** By method and path, in the order of the document. */
export const OPERATIONS: Record<string, Operation> = {
  'POST /v1/tasks': {
    id: 'submitTask',
    summary: 'Submit a task',
    description:
      'Answers 201 for a new task, 200 where its Idempotency-Key was used for the same task before.',
    problems: [
      ...COMMAND,
      'unknown_type',
      'payload_mismatch',
      'idempotency_key_reused',
      'content_too_large',
      'other_tenant',
    ],
    origin: true,
    takes: ['idempotency-key'],
    gives: ['location', 'etag'],
  },
  'POST /v1/tasks/batch': {
    id: 'submitBatch',
    summary: 'Submit many tasks',
    description: 'Each member is checked and answered by itself; a bad one does not stop the others.',
    problems: ['idempotency_key_reused'],
    origin: true,
    takes: ['idempotency-key'],
  },
  'GET /v1/tasks': { id: 'listTasks', summary: 'List tasks', problems: SEARCH },
  'GET /v1/tasks/counts': { id: 'countTasks', summary: 'Count tasks', problems: SEARCH },
  'GET /v1/tasks/:id': {
    id: 'getTask',
    summary: 'One task as it stands',
    description:
      'With Prefer: wait=N it is answered when the task is final, or with If-None-Match when it has another ETag than ' +
      'those; after N seconds, 60 at most, as it stands then.',
    problems: ['not_found', 'set_aside', 'too_many_waits'],
    takes: ['prefer', 'if-none-match'],
    gives: ['etag', 'preference-applied'],
  },
  'GET /v1/tasks/:id/events': {
    id: 'streamTask',
    summary: 'What happens to a task, as it happens',
    description:
      'Server-Sent Events; their data are TaskMessage, ResyncMessage and EndMessage in JSON. It begins with the state of ' +
      'now, or behind the Last-Event-ID, and ends with the task.',
    problems: ['not_found', 'set_aside', 'too_many_streams'],
    takes: ['last-event-id'],
    messages: MESSAGES,
  },
  'GET /v1/events': {
    id: 'streamTasks',
    summary: 'What happens to all tasks of a filter, as it happens',
    description:
      'Server-Sent Events, as of one task. The status is that after the event. It begins now, or behind the Last-Event-ID.',
    problems: ['too_many_streams', 'other_tenant', 'content_too_large'],
    takes: ['last-event-id'],
    messages: MESSAGES,
  },
  'GET /v1/tasks/:id/history': {
    id: 'getHistory',
    summary: 'The events of a task',
    problems: ['not_found', 'set_aside'],
  },
  'GET /v1/tasks/:id/refusals': {
    id: 'getRefusals',
    summary: 'What a task was asked and refused',
    problems: ['not_found'],
  },
  'POST /v1/tasks/:id/cancel': {
    id: 'cancelTask',
    summary: 'Cancel a task',
    problems: [...OF_A_TASK, ...BY_PEOPLE],
    origin: true,
    takes: ['idempotency-key', 'if-match'],
    bodyIsOptional: true,
  },
  'POST /v1/tasks/:id/retry': {
    id: 'retryTask',
    summary: 'Run a failed task again, or end its wait',
    problems: [...OF_A_TASK, ...BY_PEOPLE, 'run_limit'],
    origin: true,
    takes: ['idempotency-key', 'if-match'],
    bodyIsOptional: true,
  },
  'POST /v1/tasks/:id/notes': {
    id: 'addNote',
    summary: 'Add a note to the history',
    problems: [...OF_A_TASK, ...BY_PEOPLE, 'too_many_notes'],
    origin: true,
    takes: ['idempotency-key', 'if-match'],
  },
  'POST /v1/workers/claim': {
    id: 'claimTasks',
    summary: 'Claim tasks and start them',
    description:
      'Waits up to waitMs for the first one. Asked again with the same ids it answers the same tasks.',
    problems: ['conflict'],
    origin: true,
  },
  'POST /v1/workers/start': {
    id: 'startTasks',
    summary: 'Start tasks that came from the broker',
    origin: true,
  },
  'POST /v1/workers/report': {
    id: 'reportTasks',
    summary: 'Report of many tasks at once',
    description: 'Each report is checked and answered by itself; a bad one does not stop the others.',
    origin: true,
  },
  'POST /v1/workers/heartbeat': {
    id: 'heartbeat',
    summary: 'Keep leases, and report progress',
  },
  'POST /v1/tasks/:id/start': {
    id: 'startTask',
    summary: 'Start one task by its address',
    problems: [
      ...OF_A_TASK,
      'illegal_transition',
      'task_finished',
      'already_started',
      'not_due',
      'stale_attempt',
      'unknown_attempt',
    ],
    origin: true,
  },
  'POST /v1/tasks/:id/step': {
    id: 'enterStep',
    summary: 'Enter a step',
    problems: [...REPORT, 'too_many_steps', 'step_not_allowed'],
    origin: true,
  },
  'POST /v1/tasks/:id/succeed': {
    id: 'succeedTask',
    summary: 'Report that a task is done',
    problems: [...REPORT, 'superseded'],
    origin: true,
  },
  'POST /v1/tasks/:id/fail': {
    id: 'failTask',
    summary: 'Report that an attempt failed',
    problems: [...REPORT, 'superseded'],
    origin: true,
  },
  'POST /v1/tasks/:id/release': {
    id: 'releaseTask',
    summary: 'Hand a task back',
    problems: [...REPORT, 'release_limit'],
    origin: true,
  },
  'GET /v1/rollcall': { id: 'callTheRoll', summary: 'The roll call' },
  'POST /v1/verify': {
    id: 'verify',
    summary: 'Compare rows with streams, step by step',
    problems: ['read_model_rebuilding'],
  },
  'GET /v1/dead-letters': { id: 'listDeadLetters', summary: 'List dead letters' },
  'GET /v1/dead-letters/:id': {
    id: 'getDeadLetter',
    summary: 'One dead letter',
    problems: ['dead_letter_not_found'],
  },
  'POST /v1/dead-letters/redrive': {
    id: 'redriveDeadLetters',
    summary: 'Hand dead letters in again',
    origin: true,
  },
  'POST /v1/dead-letters/discard': {
    id: 'discardDeadLetters',
    summary: 'Discard dead letters',
    problems: ['content_too_large'],
    origin: true,
  },
  'POST /v1/keys': {
    id: 'createKey',
    summary: 'Make an access key',
    description: 'The one answer that holds the whole key.',
    problems: ['key_name_taken'],
    origin: true,
  },
  'GET /v1/keys': { id: 'listKeys', summary: 'List access keys' },
  'POST /v1/keys/:id/revoke': {
    id: 'revokeKey',
    summary: 'Revoke an access key',
    problems: ['key_not_found'],
    origin: true,
    bodyIsOptional: true,
  },
  'GET /livez': { id: 'isAlive', summary: 'Whether the process lives' },
  'GET /readyz': { id: 'isReady', summary: 'Whether its parts can serve' },
  'GET /metrics': { id: 'getMetrics', summary: 'What is counted, for Prometheus' },
}
