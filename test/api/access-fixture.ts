/** A service that asks for keys, and callers with keys of their own. */
import type { Test } from 'tap'
import type { Scope } from '../../src/api/access.ts'
import { SCOPES } from '../../src/api/access.ts'
import { PostgresKeys } from '../../src/api/postgres/postgres-keys.ts'
import { type Answer, type Api, type StartOptions, startApi } from './fixture.ts'

export interface Guarded {
  api: Api
  service: Awaited<ReturnType<typeof startApi>>['service']
  databaseUrl: string
  keys: PostgresKeys
  /** A caller with a new key. */
  caller(fields?: { name?: string; scopes?: readonly Scope[]; tenant?: string | null }): Promise<CallerOf>
}

export interface CallerOf {
  secret: string
  keyId: string
  name: string
  get<T = Loose>(path: string, headers?: Record<string, string>): Promise<Answer<T>>
  post<T = Loose>(path: string, body?: unknown, headers?: Record<string, string>): Promise<Answer<T>>
}
type Loose = Record<string, unknown>

export const bearer = (secret: string): Record<string, string> => ({ authorization: `Bearer ${secret}` })

let named = 0
const PATIENCE_MS = 20_000

export async function startGuarded(t: Test, options: StartOptions = {}): Promise<Guarded> {
  const { api, service, databaseUrl } = await startApi(t, {
    ...options,
    config: { requireKeys: true, ...options.config },
  })
  const keys = new PostgresKeys(service.pool)
  return {
    api,
    service,
    databaseUrl,
    keys,
    caller: async ({ name = `caller-${++named}`, scopes = SCOPES, tenant = null } = {}) => {
      const made = await keys.create({ name, scopes, tenant, createdBy: 'test' })
      if (!made) throw new Error(`the name ${name} is taken`)
      const { secret, key } = made
      return {
        secret,
        keyId: key.keyId,
        name,
        // What is let in by mistake may go on and on.
        get: (path, headers = {}) => {
          const signal = AbortSignal.timeout(PATIENCE_MS)
          return api.ask('GET', path, { headers: { ...bearer(secret), ...headers }, signal })
        },
        post: (path, body, headers = {}) =>
          api.ask('POST', path, { body, headers: { ...bearer(secret), ...headers } }),
      }
    },
  }
}
