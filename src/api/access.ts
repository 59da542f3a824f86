/** Who may do what: every route names the scope it takes, every request has a caller. */
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { KeyRing } from './key-ring.ts'
import { idOfKey, type Key } from './keys.ts'
import type { AppParts } from './parts.ts'
import { Problem } from './problems.ts'

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
/** Whoever asks what nobody needs a key for. */
const NOBODY: Caller = { key: null, scopes: new Set(), tenant: null }

declare module 'fastify' {
  interface FastifyRequest {
    caller: Caller
  }
  interface FastifyContextConfig {
    /** What a caller needs for this route; each under /v1 names it. */
    scope?: Scope
    /** It is about the whole installation: no key of a tenant will do. */
    whole?: true
  }
}

/** What is said to those who may not. */
const REFUSALS = ['unauthenticated', 'missing_scope', 'whole_installation', 'other_tenant'] as const
export type AccessRefusal = (typeof REFUSALS)[number]

export interface AccessOptions {
  ring: Pick<KeyRing, 'open'>
  /** Without, whoever shows no key may do everything; one that is shown restricts all the same. */
  keysRequired: boolean
  /** Counts the request against its caller's rate; null where there is no limit. @throws Problem rate_limited */
  limit: ((request: FastifyRequest) => Promise<void>) | null
}

/** Has every route under /v1 say whom it is for. */
export function nameScopes(app: FastifyInstance): void {
  app.decorateRequest('caller')
  app.addHook('onRoute', route => {
    if (route.url.startsWith('/v1/') && !route.config?.scope)
      throw new Error(`bug: ${route.method} ${route.url} names no scope`)
  })
}

/** Gives every request its caller, and refuses those who may not, before anything of the body is read. */
export function guardRoutes(app: FastifyInstance, { ring, keysRequired, limit }: AccessOptions): void {
  app.addHook('onRequest', (request, _reply, done) => {
    const { scope } = request.routeOptions.config
    const { authorization } = request.headers
    request.caller = scope === undefined ? NOBODY : ANYONE
    if (scope === undefined || (!keysRequired && !limit && authorization === undefined)) return done()
    admit(request, scope, authorization).then(() => done(), done)
  })

  async function admit(request: FastifyRequest, scope: Scope, authorization?: string): Promise<void> {
    const caller = await callerOf(authorization)
    request.caller = caller ?? NOBODY
    await limit?.(request)
    if (!caller) throw new Problem('unauthenticated', authorization === undefined ? NO_KEY : WRONG_KEY)
    requireScope(caller, scope)
    if (request.routeOptions.config.whole && caller.tenant !== null) throw new Problem('whole_installation')
  }

  /** Null for one who may not come in. */
  async function callerOf(authorization: string | undefined): Promise<Caller | null> {
    if (authorization === undefined) return keysRequired ? null : ANYONE
    const text = bearer(authorization)
    const key = text === null ? null : await ring.open(text)
    return key && callerWith(key)
  }
}

/** For what takes more than its route does. @throws Problem missing_scope */
export function requireScope({ key, scopes }: Caller, scope: Scope): void {
  if (!scopes.has(scope)) throw new Problem('missing_scope', `The key ${key} lacks the scope ${scope}.`)
}

const NO_KEY = 'Show a key: Authorization: Bearer rck_….'
const WRONG_KEY = 'The key that was shown is not one that may come in; it may have been revoked.'

/** Counts and logs an answer where it says that the caller may not. */
export function noteRefusal(
  { metrics, logger }: Pick<AppParts, 'metrics' | 'logger'>,
  { caller, routeOptions, headers, ip }: FastifyRequest,
  problem: Problem,
): void {
  const code = REFUSALS.find(one => one === problem.code)
  const { method, url: route, config } = routeOptions
  if (code === undefined || config.scope === undefined) return
  metrics.accessRefused(code, config.scope)
  const { key, tenant } = caller
  // The id that a key begins with opens nothing, and says which one was revoked or mistyped.
  const keyId = idOfKey(bearer(headers.authorization) ?? '')
  logger.warn({ code, scope: config.scope, method, route, key, keyId, tenant, address: ip }, 'access refused')
}

const callers = new WeakMap<Key, Caller>()

/** One for each key that is remembered, so that a request costs no set. */
function callerWith(key: Key): Caller {
  let caller = callers.get(key)
  if (!caller) {
    caller = { key: key.name, scopes: new Set(key.scopes), tenant: key.tenant }
    callers.set(key, caller)
  }
  return caller
}

/** The key of an Authorization header; null where it shows none. */
export const bearer = (authorization: string | undefined): string | null =>
  /^bearer +(\S+) *$/i.exec(authorization ?? '')?.[1] ?? null
