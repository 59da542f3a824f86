/** A real service on a database of its own, and as little as possible between the test and the wire. */
import { randomUUID } from 'node:crypto'
import { Agent, type IncomingHttpHeaders, request } from 'node:http'
import pino, { type Logger } from 'pino'
import type { Test } from 'tap'
import type { z } from 'zod'
import { buildApp } from '../../src/api/app.ts'
import type { AppParts } from '../../src/api/parts.ts'
import { CATALOGUE, type ProblemCode } from '../../src/api/problems.ts'
import type { History, HistoryEvent, SubmitRequest, TaskView } from '../../src/api/schemas/tasks.ts'
import type { ClaimAnswer, ClaimedTask } from '../../src/api/schemas/workers.ts'
import { type FileConfig, fileConfigSchema, serviceConfigSchema } from '../../src/runtime/config.ts'
import { type Service, startService } from '../../src/runtime/service.ts'
import { answerSchemas } from '../support/answer-schemas.ts'
import { testDatabase } from '../support/postgres.ts'

export interface Answer<T> {
  status: number
  headers: IncomingHttpHeaders
  text: string
  body: T
}

/** What a test sends; a text or bytes go as they are, anything else as JSON. */
export interface Sent {
  body?: unknown
  headers?: Record<string, string | string[]>
  signal?: AbortSignal
}

/** Answers are what they are; a test says what it expects of them. */
type Loose = Record<string, unknown>

export class Api {
  readonly url: string
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 128 })

  constructor(t: Test, url: string) {
    this.url = url
    t.teardown(() => this.#agent.destroy())
  }

  /** @throws Error where the answer is not as the API's document says */
  async ask<T = Loose>(method: string, path: string, sent: Sent = {}): Promise<Answer<T>> {
    const answer = await this.#send<T>(method, path, sent)
    const { status, headers, body, text } = answer
    const type = headers['content-type']
    // What comes with HEAD has no body.
    const fault =
      method === 'HEAD' ? null : (await answerSchemas()).fault(method, path, { status, type, body })
    if (fault) throw new Error(`${method} ${path} was answered ${status}, ${fault}: ${text.slice(0, 2_000)}`)
    return answer
  }

  #send<T>(method: string, path: string, { body, headers = {}, signal }: Sent): Promise<Answer<T>> {
    const isRaw = body === undefined || typeof body === 'string' || Buffer.isBuffer(body)
    const bytes = isRaw ? Buffer.from((body as string | Buffer | undefined) ?? '') : JSON.stringify(body)
    const { hostname, port } = new URL(this.url)
    return new Promise((resolve, reject) => {
      const sent = request(
        {
          agent: this.#agent,
          hostname,
          port,
          method,
          path,
          signal,
          headers: {
            ...(body === undefined ? {} : { 'content-type': 'application/json' }),
            ...(method === 'GET' ? {} : { 'content-length': Buffer.byteLength(bytes) }),
            ...headers,
          },
        },
        response => {
          const parts: Buffer[] = []
          response.on('data', part => parts.push(part))
          response.on('error', reject)
          response.on('end', () => {
            const text = Buffer.concat(parts).toString('utf8')
            const status = response.statusCode ?? 0
            const isJson = /json/.test(response.headers['content-type'] ?? '')
            const body = isJson ? JSON.parse(text || 'null') : null
            resolve({ status, headers: response.headers, text, body })
          })
        },
      )
      sent.on('error', reject)
      sent.end(method === 'GET' ? undefined : bytes)
    })
  }

  get<T = Loose>(path: string, headers: Record<string, string> = {}): Promise<Answer<T>> {
    return this.ask<T>('GET', path, { headers })
  }

  post<T = Loose>(path: string, body?: unknown, headers: Sent['headers'] = {}): Promise<Answer<T>> {
    return this.ask<T>('POST', path, { body, headers })
  }

  /** Submits one task that must be accepted. */
  async submit(task: Partial<SubmitRequest> = {}): Promise<TaskView> {
    const answer = await this.post<TaskView>('/v1/tasks', { type: aType(), ...task })
    if (answer.status !== 201) throw new Error(`a submit was answered ${answer.status}: ${answer.text}`)
    return answer.body
  }

  async task(taskId: string): Promise<TaskView> {
    return (await this.get<TaskView>(`/v1/tasks/${taskId}`)).body
  }

  async history(taskId: string): Promise<HistoryEvent[]> {
    return (await this.get<History>(`/v1/tasks/${taskId}/history?limit=1000`)).body.events
  }

  async eventTypes(taskId: string): Promise<string[]> {
    return (await this.history(taskId)).map(({ type }) => type)
  }

  claim(fields: Loose): Promise<Answer<ClaimAnswer>> {
    return this.post<ClaimAnswer>('/v1/workers/claim', {
      worker: 'worker-1',
      claimId: randomUUID(),
      leaseToken: TOKEN,
      waitMs: 10_000,
      ...fields,
    })
  }

  /** Submits one task and has it started by a claim. */
  async started(task: Partial<SubmitRequest> = {}): Promise<ClaimedTask> {
    const { type } = await this.submit(task)
    const { body, text } = await this.claim({ types: [type] })
    const [claimed] = body.tasks
    if (!claimed) throw new Error(`the claim got nothing: ${text}`)
    return claimed
  }

  /** One of the worker's commands for the current holder. */
  command<T = TaskView>(
    { taskId, attempt }: { taskId: string; attempt: number },
    command: 'start' | 'step' | 'succeed' | 'fail' | 'release',
    fields: Loose = {},
  ): Promise<Answer<T>> {
    return this.post<T>(`/v1/tasks/${taskId}/${command}`, { attempt, leaseToken: TOKEN, ...fields })
  }
}

export const TOKEN = 'lease-token-of-the-first-worker'
export const OTHER_TOKEN = 'lease-token-of-another-worker'

let types = 0
/** A type of one's own, so that tests on one service do not claim each other's tasks. */
export const aType = (): string => `type-${++types}`

export interface StartOptions {
  file?: Partial<FileConfig>
  databaseUrl?: string
  /** The address of the log; in the database where there is none. */
  log?: string
  config?: Partial<z.input<typeof serviceConfigSchema>>
  logger?: Logger
}

export async function startApi(
  t: Test,
  options: StartOptions = {},
): Promise<{ api: Api; service: Service; databaseUrl: string }> {
  const databaseUrl = options.databaseUrl ?? (await testDatabase(t)).url
  const service = await startService({
    ...serviceConfigSchema.parse({ databaseUrl, log: options.log, port: 0, ...options.config }),
    file: { ...fileConfigSchema.parse({}), ...options.file },
    logger: options.logger ?? pino({ level: 'silent' }),
    requireDurable: false,
  })
  t.teardown(() => service.stop())
  return { api: new Api(t, service.url!), service, databaseUrl }
}

/** The answer is this problem, in the shape of RFC 9457, and its detail says where or why. */
export function isProblem(t: Test, answer: Answer<unknown>, code: ProblemCode, detail: RegExp = /./): void {
  const { status, title } = CATALOGUE[code]
  t.match(
    { ...answer, type: answer.headers['content-type'] },
    {
      status,
      type: /^application\/problem\+json/,
      body: { type: `urn:rollcall:problem:${code}`, title, status, code, detail },
    },
    `${code}, ${status}`,
  )
  if (status === 503) t.match(answer.headers, { 'retry-after': /^\d+$/ })
}

/** Looks until a condition holds, for what gives no signal; fails when it does not in time. */
export async function until<T>(
  what: string,
  look: () => T | false | null | undefined | Promise<T | false | null | undefined>,
  ms = 20_000,
): Promise<T> {
  const deadline = performance.now() + ms
  for (;;) {
    const found = await look()
    if (found) return found
    if (performance.now() > deadline) throw new Error(`timed out waiting until ${what}`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

/** The routes that the application has, as `GET /v1/tasks`; HEAD comes with GET. */
export async function registeredRoutes(): Promise<string[]> {
  const app = buildApp('api', { logger: pino({ level: 'silent' }) } as AppParts)
  await app.ready()
  const paths: string[] = []
  const routes: string[] = []
  // A tree of lines such as `│   ├── /batch (POST)`, four characters a level.
  for (const line of app.printRoutes({ commonPrefix: false }).split('\n')) {
    const [, indent = '', part = '', methods = ''] = /^(.*?)[├└]── (\S+) \((.+)\)$/.exec(line) ?? []
    if (!part) continue
    const depth = indent.length / 4
    paths.splice(depth, paths.length, part)
    for (const method of methods.split(', '))
      if (method !== 'HEAD') routes.push(`${method} ${paths.join('')}`)
  }
  await app.close()
  // What documents the routes is none of them.
  return routes.filter(route => !/^GET \/(openapi\.json|docs)/.test(route)).sort()
}
