import { type EventLog, LogSealedError } from '../../eventlog/event-log.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { aliveSchema, readySchema } from '../schemas/health.ts'

/** Alive is the process; ready is a process whose parts can serve. */
export function healthRoutes(app: TypedApp, parts: AppParts): void {
  app.get('/livez', { schema: { response: { 200: aliveSchema } } }, async () => ({ status: 'ok' as const }))
  app.get(
    '/readyz',
    { schema: { response: { 200: readySchema, 503: readySchema } } },
    async (_request, reply) => {
      const checks = [
        ...parts.health(),
        await reach('log', () => head(parts.log)),
        await reach('read_model', () => parts.pool.query('SELECT 1')),
      ]
      const ok = checks.every(check => check.ok || ('needed' in check && !check.needed))
      return reply.code(ok ? 200 : 503).send({ status: ok ? 'ok' : 'unavailable', checks })
    },
  )
}

/** A log that can be read and takes nothing is no log to serve commands on. */
async function head(log: EventLog): Promise<void> {
  await log.head()
  const movedTo = await log.sealedFor()
  if (movedTo !== null) throw new LogSealedError(log.id, movedTo)
}

const REACH_MS = 2_000

/** Asks a part for a sign of life, for a bounded time. */
async function reach(name: string, ask: () => Promise<unknown>) {
  let timer: NodeJS.Timeout | undefined
  try {
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no answer within ${REACH_MS} ms`)), REACH_MS)
    })
    await Promise.race([ask(), late])
    return { name, ok: true, reason: null }
  } catch (error) {
    return { name, ok: false, reason: (error as Error).message || 'cannot be reached' }
  } finally {
    clearTimeout(timer)
  }
}
