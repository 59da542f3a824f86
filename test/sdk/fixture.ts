/** A real service with a proxy in front that can lose, delay and spoil what passes. */
import { once } from 'node:events'
import * as http from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import pino from 'pino'
import type { Test } from 'tap'
import { fileConfigSchema, serviceConfigSchema } from '../../src/runtime/config.ts'
import { startService } from '../../src/runtime/service.ts'
import { type Client, createClient, type TaskView } from '../../src/sdk/client.ts'
import type { LogFields, Logger } from '../../src/sdk/logger.ts'
import { createWorker, type Worker, type WorkerOptions } from '../../src/sdk/worker.ts'
import { testDatabase } from '../support/postgres.ts'

export const WAIT_MS = 20_000

/**
 * What becomes of a request. `lose_answer`: carried out, then the connection breaks. `hold_answer`: carried out
 * and never answered. `hang`: neither.
 */
export type Fault =
  | 'lose_request'
  | 'lose_answer'
  | 'hold_answer'
  | 'hang'
  | { status: number; headers?: Record<string, string>; body?: string }

export interface SeenRequest {
  method: string
  path: string
  headers: http.IncomingHttpHeaders
  body: string
}

export interface FaultProxy {
  url: string
  /** Every request that came, in order. */
  seen: SeenRequest[]
  /** Requests to a path, parsed. */
  bodies(path: string): Record<string, unknown>[]
  /** The next `times` requests to a path meet this fault. */
  fault(path: string, fault: Fault, times?: number): void
  /** Forgets the faults that are left. */
  heal(): void
  /** Resolves with the next request to a path that was not seen yet. */
  next(path: string): Promise<SeenRequest>
  /** Refuses connections until `up`. */
  down(): Promise<void>
  up(): Promise<void>
}

export interface Fixture {
  client: Client
  /** The service without the proxy. */
  url: string
  proxy: FaultProxy
  /** A worker through the proxy, started; stopped when the test ends. */
  worker(types: WorkerOptions['types'], options?: Partial<WorkerOptions>): Worker
  log: LogLine[]
}

export interface LogLine extends LogFields {
  level: string
  message: string
}

/** A service on a database of its own, its client, and a proxy for workers. */
export async function startFixture(t: Test): Promise<Fixture> {
  const { url: databaseUrl } = await testDatabase(t)
  const service = await startService({
    ...serviceConfigSchema.parse({ databaseUrl, port: 0 }),
    file: fileConfigSchema.parse({}),
    logger: pino({ level: 'silent' }),
    requireDurable: false,
  })
  t.teardown(() => service.stop())
  const url = service.url!
  const proxy = await startFaultProxy(t, url)
  const log: LogLine[] = []
  const worker = (types: WorkerOptions['types'], options: Partial<WorkerOptions> = {}) => {
    const made = createWorker({ url: proxy.url, types, logger: recorder(log), ...options })
    t.teardown(() => made.stop({ drainMs: 0 }))
    made.start()
    return made
  }
  return { client: createClient({ url }), url, proxy, worker, log }
}

/** Any service: what the handler answers, through a proxy that can spoil it. */
export async function startFakeService(t: Test, answer: (request: SeenRequest) => Exclude<Fault, string>) {
  const server = http.createServer(async (incoming, outgoing) => {
    const request = await read(incoming)
    const { status, headers, body } = answer(request)
    outgoing.writeHead(status, { 'content-type': 'application/json', ...headers }).end(body)
  })
  const url = await listen(server, 0)
  t.teardown(() => close(server))
  return startFaultProxy(t, url)
}

export async function startFaultProxy(t: Test, upstream: string): Promise<FaultProxy> {
  const faults: { path: string; fault: Fault; left: number }[] = []
  const waiters: { path: string; resolve: (request: SeenRequest) => void }[] = []
  const seen: SeenRequest[] = []
  const agent = new http.Agent({ keepAlive: true })
  const sockets = new Set<Socket>()
  let server = http.createServer()

  const handle = async (incoming: http.IncomingMessage, outgoing: http.ServerResponse) => {
    const request = await read(incoming)
    seen.push(request)
    for (const waiter of waiters.splice(0))
      if (waiter.path === request.path) waiter.resolve(request)
      else waiters.push(waiter)
    const met = faults.find(({ path, left }) => left > 0 && path === request.path)
    if (met) met.left--
    const fault = met?.fault
    if (fault === 'hang') return
    if (fault === 'lose_request') return incoming.socket.destroy()
    if (typeof fault === 'object')
      return outgoing
        .writeHead(fault.status, { 'content-type': 'application/problem+json', ...fault.headers })
        .end(fault.body)
    forward(request, outgoing, fault)
  }
  const forward = (request: SeenRequest, outgoing: http.ServerResponse, fault?: Fault) => {
    const { method, path, headers, body } = request
    const passed = http.request(new URL(path, upstream), { method, headers, agent }, answer => {
      if (fault === 'hold_answer') answer.resume()
      else if (fault === 'lose_answer') answer.resume().on('end', () => outgoing.socket?.destroy())
      else answer.pipe(outgoing.writeHead(answer.statusCode!, answer.headers))
    })
    passed.on('error', () => outgoing.socket?.destroy())
    // A caller that goes away is gone for the service too.
    outgoing.on('close', () => outgoing.writableFinished || passed.destroy())
    passed.end(body)
  }
  const open = async (port: number) => {
    server = http.createServer(
      (incoming, outgoing) => void handle(incoming, outgoing).catch(() => outgoing.destroy()),
    )
    server.on('connection', socket => {
      sockets.add(socket)
      socket.on('close', () => sockets.delete(socket))
    })
    return listen(server, port)
  }
  const shut = async () => {
    for (const socket of sockets) socket.destroy()
    if (server.listening) await close(server)
  }
  const url = await open(0)
  t.teardown(async () => {
    await shut()
    agent.destroy()
  })
  return {
    url,
    seen,
    bodies: path => seen.filter(request => request.path === path).map(request => JSON.parse(request.body)),
    fault: (path, fault, times = 1) => void faults.push({ path, fault, left: times }),
    heal: () => void faults.splice(0),
    next: path => new Promise(resolve => waiters.push({ path, resolve })),
    down: shut,
    up: async () => void (await open(Number(new URL(url).port))),
  }
}

async function read(incoming: http.IncomingMessage): Promise<SeenRequest> {
  let body = ''
  incoming.setEncoding('utf8')
  for await (const part of incoming) body += part
  return { method: incoming.method!, path: incoming.url!, headers: incoming.headers, body }
}

export async function listen(server: http.Server, port: number): Promise<string> {
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

export function close(server: http.Server): Promise<void> {
  server.closeAllConnections()
  return new Promise(resolve => server.close(() => resolve()))
}

export function recorder(log: LogLine[]): Logger {
  const write = (level: string) => (fields: LogFields, message: string) =>
    void log.push({ ...fields, level, message })
  return { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') }
}

/** A promise and the way to settle it from outside. */
export function gate<T = void>() {
  let open: (value: T) => void = () => {}
  const opened = new Promise<T>(resolve => {
    open = resolve
  })
  return { opened, open }
}

/** Rejects with the signal's reason once it is aborted. */
export function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason)
    else signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
}

/** Looks until a condition holds, for what gives no signal; fails when it does not in time. */
export async function until<T>(
  what: string,
  look: () => T | false | null | undefined | Promise<T | false | null | undefined>,
  ms = WAIT_MS,
): Promise<T> {
  const deadline = performance.now() + ms
  for (;;) {
    const found = await look()
    if (found) return found
    if (performance.now() > deadline) throw new Error(`timed out waiting until ${what}`)
    await new Promise(resolve => setTimeout(resolve, 10))
  }
}

/** The stored events of a task, by name. */
export async function eventTypes(client: Client, taskId: string): Promise<string[]> {
  const types: string[] = []
  for await (const event of client.events(taskId)) types.push(event.type)
  return types
}

export const finished = (client: Client, { taskId }: Pick<TaskView, 'taskId'>): Promise<TaskView> =>
  client.waitFor(taskId, { timeoutMs: WAIT_MS })
