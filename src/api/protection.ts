/** What stands before all routes: headers for browsers, a check of the event loop, a rate for each caller. */
import helmet from '@fastify/helmet'
import rateLimit from '@fastify/rate-limit'
import underPressure from '@fastify/under-pressure'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { Problem } from './problems.ts'

/** How late the event loop may be, on average over a second. */
const LATE_MS = 1_000
const SAMPLE_MS = 1_000
const RATE_WINDOW_MS = 1_000
/** Of whom the last window's requests are counted. */
const CALLERS_MAX = 10_000

/** Headers for browsers, and 503 while the process is behind. Registered before the routes' own hooks. */
export function protect(app: FastifyInstance): void {
  app.register(helmet, {
    global: false,
    // Answers are data: whatever a browser makes of one may load nothing and stand in no frame.
    contentSecurityPolicy: {
      useDefaults: false,
      directives: { defaultSrc: ["'none'"], frameAncestors: ["'none'"] },
    },
    xFrameOptions: { action: 'deny' },
    // Whether TLS is there to stay is for that to say which ends it.
    strictTransportSecurity: false,
    // For pages and for old browsers.
    originAgentCluster: false,
    xDnsPrefetchControl: false,
    xDownloadOptions: false,
    xPermittedCrossDomainPolicies: false,
    xXssProtection: false,
  })
  app.after(() => setHeadersOnce(app))
  app.register(underPressure, {
    sampleInterval: SAMPLE_MS,
    maxEventLoopDelay: LATE_MS,
    // It only measures; the hook below decides.
    pressureHandler: () => {},
  })
  app.after(() => refuseWhileBehind(app))
}

/**
 * Has helmet say its header fields once. It would work them out for every request, and set them past Fastify, which then
 * writes all others slowly: 20 microseconds each.
 */
function setHeadersOnce(app: FastifyInstance): void {
  let fields: Record<string, string> | null = null
  app.addHook('onRequest', (_request, reply, done) => {
    if (!fields) {
      reply.helmet()
      fields = reply.raw.getHeaders() as Record<string, string>
      for (const name of Object.keys(fields)) reply.raw.removeHeader(name)
    }
    reply.headers(fields)
    done()
  })
}

/**
 * Refuses while pressure lasts. One stall (a start, a process that was stopped and goes on) is over when it is seen, and is
 * no reason to refuse what comes after it.
 */
function refuseWhileBehind(app: FastifyInstance): void {
  let since: number | null = null
  app.addHook('onRequest', (request, _reply, done) => {
    if (!app.isUnderPressure()) {
      since = null
      return done()
    }
    const now = performance.now()
    since ??= now
    // Whoever watches the process must hear of it; what takes no scope is health and documents.
    const { url, config } = request.routeOptions
    if (now - since <= SAMPLE_MS || config.scope === undefined || url === '/metrics') return done()
    done(new Problem('overloaded', 'This process is behind with its work; ask again later.'))
  })
}

/**
 * Counts a request against the rate of its key, or of its address where it shows none: of IPv6 its network, since one host
 * has all of that.
 *
 * @param perSecond 0 is no limit
 */
export function rateOf(
  app: FastifyInstance,
  perSecond: number,
): ((request: FastifyRequest) => Promise<void>) | null {
  if (!perSecond) return null
  app.register(rateLimit, {
    global: false,
    max: perSecond,
    timeWindow: RATE_WINDOW_MS,
    cache: CALLERS_MAX,
    keyGenerator: ({ caller, ip }) =>
      caller.key === null ? `from ${rateLimit.normalizeIP(ip)}` : `key ${caller.key}`,
  })
  let count: ReturnType<FastifyInstance['createRateLimit']> | null = null
  return async request => {
    count ??= app.createRateLimit()
    const counted = await count(request)
    if (!counted.isAllowed && counted.isExceeded)
      throw new Problem(
        'rate_limited',
        `More than ${perSecond} requests in a second; this caller may send no more.`,
      )
  }
}
