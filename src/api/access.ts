/** Who may do what: every route names the scope it takes, every request has a caller. */
import type { FastifyInstance } from 'fastify'

/**
 * - `submit`: hand in tasks. `read`: look at tasks and lists, and wait for them. `work`: claim, start and report.
 * - `operate`: what people do to tasks and to what is stuck. `audit`: histories, refusals, proofs. `admin`: keys.
 */
export const SCOPES = ['submit', 'read', 'work', 'operate', 'audit', 'admin'] as const
export type Scope = (typeof SCOPES)[number]

export interface Caller {
  /** The name of its key; null where the API is open and no key was shown. */
  key: string | null
  scopes: ReadonlySet<Scope>
  /** The only tenant it may reach; null reaches every one. */
  tenant: string | null
}

/** Whoever reaches an API that is open. */
export const ANYONE: Caller = { key: null, scopes: new Set(SCOPES), tenant: null }

declare module 'fastify' {
  interface FastifyRequest {
    caller: Caller
  }
  interface FastifyContextConfig {
    /** What a caller needs for this route; each under /v1 names it. */
    scope?: Scope
  }
}

/** Gives every request its caller, and refuses a route that does not say whom it is for. */
export function guardRoutes(app: FastifyInstance): void {
  app.decorateRequest('caller')
  app.addHook('onRequest', async request => {
    request.caller = ANYONE
  })
  app.addHook('onRoute', route => {
    if (route.url.startsWith('/v1/') && !route.config?.scope)
      throw new Error(`bug: ${route.method} ${route.url} names no scope`)
  })
}
