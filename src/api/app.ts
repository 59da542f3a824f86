/** The HTTP application: routes over the engine and the read model. It neither listens nor reads configuration. */
import Fastify, {
  type FastifyBaseLogger,
  type FastifyError,
  type FastifyInstance,
  LogController,
} from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import type { Logger } from 'pino'
import { type ZodType, z } from 'zod'
import { ClaimNotStartedError } from '../workers/claims.ts'
import { guardRoutes, nameScopes, noteRefusal } from './access.ts'
import { answerBrokenRequest } from './broken-request.ts'
import { parseJsonBody } from './json-body.ts'
import { answerNoRoute } from './no-route.ts'
import { serveDocument } from './openapi.ts'
import type { AppParts } from './parts.ts'
import { invalid, Problem } from './problems.ts'
import { protect, rateOf } from './protection.ts'
import { guardReach } from './reach.ts'
import { commandRoutes } from './routes/commands.ts'
import { deadLetterRoutes } from './routes/dead-letters.ts'
import { eventRoutes } from './routes/events.ts'
import { healthRoutes } from './routes/health.ts'
import { historyRoute } from './routes/history.ts'
import { keyRoutes } from './routes/keys.ts'
import { listRoutes } from './routes/list.ts'
import { metricsRoutes } from './routes/metrics.ts'
import { refusalRoutes } from './routes/refusals.ts'
import { rollCallRoutes } from './routes/roll-call.ts'
import { submitRoutes } from './routes/submit.ts'
import { taskRoute } from './routes/task.ts'
import { workerRoutes } from './routes/workers.ts'
import { SignalWatch } from './signal-watch.ts'

export type App = FastifyInstance

/** A body holds one payload of 256 KiB, escaped, and what is around it. */
const BODY_BYTES = 1024 * 1024
const PARAM_CHARACTERS = 200

/**
 * Builds the application; the caller listens or injects.
 *
 * @param serves `health` leaves out everything but health and metrics, for a process without the role `api`
 */
export function buildApp(serves: 'api' | 'health', parts: AppParts): App {
  const app = Fastify({
    // Fastify's own logger type, or every route would carry pino's.
    loggerInstance: parts.logger.child(
      { part: 'api' },
      { level: httpLevel(parts.logger.level) },
    ) as FastifyBaseLogger,
    // Each transition has its line; one more for every request would drown them.
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: BODY_BYTES,
    routerOptions: { maxParamLength: PARAM_CHARACTERS },
    requestTimeout: 60_000,
    keepAliveTimeout: 65_000,
    forceCloseConnections: 'idle',
    // Fastify's own answer would not be one of ours; see `refuseWhileClosing`.
    return503OnClosing: false,
    clientErrorHandler: answerBrokenRequest,
    frameworkErrors: (error, _request, reply) => {
      problemOf(error, parts.logger).send(reply as never)
    },
  })
  app.setValidatorCompiler(({ schema }) => data => {
    const parsed = (schema as unknown as ZodType).safeParse(data)
    return parsed.success ? { value: parsed.data } : { error: invalid(parsed.error) }
  })
  // The schemas of answers are for the document and the tests; nothing is cut or checked on the way.
  app.setSerializerCompiler(() => data => JSON.stringify(data))
  answerNoRoute(app, PARAM_CHARACTERS)
  refuseWhileClosing(app)
  refuseUnknownParameters(app)
  nameScopes(app)
  guardReach(app, parts.engine)
  protect(app)
  const limit = rateOf(app, parts.rateLimit)
  // Behind the hooks of what was registered before.
  app.after(() => guardRoutes(app, { ring: parts.ring, keysRequired: parts.keysRequired, limit }))
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body, done) => {
    try {
      requireUtf8(request.headers['content-type'])
      // A command without a body is a command without options.
      done(null, body.length === 0 ? undefined : parseJsonBody(body as Buffer))
    } catch (error) {
      done(error as Error)
    }
  })
  app.setErrorHandler((error: FastifyError, request, reply) => {
    const problem = problemOf(error, parts.logger)
    noteRefusal(parts, request, problem)
    return problem.send(reply)
  })
  const typed = app.withTypeProvider<ZodTypeProvider>()
  if (serves === 'api') serveDocument(app)
  // Behind the hooks of what was registered, which is loaded later than it is registered.
  app.after(() => {
    metricsRoutes(typed, parts)
    healthRoutes(typed, parts)
    if (serves === 'health') return
    const signalWatch = new SignalWatch(parts)
    submitRoutes(typed, parts)
    taskRoute(typed, parts, signalWatch)
    eventRoutes(typed, parts, signalWatch)
    listRoutes(typed, parts)
    historyRoute(typed, parts)
    commandRoutes(typed, parts)
    refusalRoutes(typed, parts)
    workerRoutes(typed, parts)
    rollCallRoutes(typed, parts)
    deadLetterRoutes(typed, parts)
    keyRoutes(typed, parts)
  })
  return app
}

/** Connections that are still open while the service stops bring requests that nobody has time for. */
function refuseWhileClosing(app: FastifyInstance): void {
  let closing = false
  app.addHook('preClose', async () => {
    closing = true
  })
  app.addHook('onRequest', async () => {
    if (closing) throw new Problem('shutting_down')
  })
}

/** A parameter that a route does not know is a mistake of its caller, and is not passed over in silence. */
function refuseUnknownParameters(app: FastifyInstance): void {
  app.addHook('onRoute', route => {
    if (route.url.startsWith('/v1/')) route.schema = { querystring: z.strictObject({}), ...route.schema }
  })
}

function requireUtf8(contentType: string | undefined): void {
  const charset = /;\s*charset\s*=\s*"?([^\s;"]*)/i.exec(contentType ?? '')?.[1]
  if (charset !== undefined && !/^utf-?8$/i.test(charset))
    throw new Problem('unsupported_media_type', `The charset ${charset} is not read; send UTF-8.`)
}

const httpLevel = (level: string): string => (level === 'info' ? 'warn' : level)

/** Whatever was thrown, as a Problem. What is not foreseen is logged and answered without its inside. */
function problemOf(error: FastifyError, logger: Logger): Problem {
  if (error instanceof Problem) return error
  if (error instanceof ClaimNotStartedError) return new Problem(error.code, error.message)
  switch (error.code) {
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return new Problem('body_too_large')
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return new Problem('unsupported_media_type')
    case 'log_unavailable':
      return new Problem('log_unavailable', 'The event log cannot be reached; ask again later.')
  }
  if (isDatabaseOutage(error)) {
    logger.error({ err: error }, 'the read model cannot be reached')
    return new Problem('read_model_unavailable')
  }
  if (error.statusCode !== undefined && error.statusCode < 500)
    return new Problem('invalid_request', error.message)
  logger.error({ err: error }, 'a request failed')
  return new Problem('internal_error')
}

/**
 * Failures that pass: socket and name service errors, and the SQLSTATE classes of connections, of resources, of
 * operators (the server going down or not up yet, a statement that took too long) and of the system.
 */
const OUTAGE_CODES = /^(ECONN|EPIPE|ENOENT|ENOTFOUND|ETIMEDOUT|EHOST|ENET|EAI_|08|53|57|58|25P03)/
function isDatabaseOutage(error: Error & { code?: string }): boolean {
  if (error.code !== undefined) return OUTAGE_CODES.test(error.code)
  // pg gives these no code.
  return /Connection terminated|timeout exceeded when trying to connect|Query read timeout/.test(
    error.message,
  )
}
