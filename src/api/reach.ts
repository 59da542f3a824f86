/**
 * How far a tenant's caller reaches: to its own tenant's tasks. Another's is answered exactly as one that does not exist,
 * and nothing is stored or counted for it. A task never changes its tenant, so whatever this process knows of it will do.
 */
import type { FastifyInstance } from 'fastify'
import type { CommandEnvelope } from '../domain/commands.ts'
import { type Answer, refused } from '../engine/answer.ts'
import type { Engine } from '../engine/engine.ts'
import { taskIn } from '../engine/task-reader.ts'
import type { Caller } from './access.ts'
import { Problem } from './problems.ts'

type Tasks = Pick<Engine, 'known' | 'read' | 'execute'>
type Reaching = Pick<Caller, 'tenant'>

/**
 * Whether the caller may know nothing of the task: it is another tenant's, or not there, or its stream cannot be read and
 * nobody can say whose it is. Never so for a caller without a tenant, and at no cost.
 */
async function isBeyond(engine: Tasks, { tenant }: Reaching, taskId: string): Promise<boolean> {
  if (tenant === null) return false
  const task = engine.known(taskId) ?? taskIn(await engine.read(taskId))
  return task?.tenant !== tenant
}

/** Those of the tasks that the caller may know nothing of. */
export async function beyondReach(
  engine: Tasks,
  caller: Reaching,
  taskIds: readonly string[],
): Promise<ReadonlySet<string>> {
  if (caller.tenant === null) return NOTHING
  // Reads of the same turn share a round trip.
  const beyond = await Promise.all(taskIds.map(id => isBeyond(engine, caller, id)))
  return new Set(taskIds.filter((_, index) => beyond[index]))
}

const NOTHING: ReadonlySet<string> = new Set()

/** The engine's `execute`, which answers what is beyond the caller's reach as what is not there, and stores nothing. */
export function executeWithin(
  engine: Tasks,
  caller: Reaching,
): (envelope: CommandEnvelope) => Promise<Answer> {
  if (caller.tenant === null) return envelope => engine.execute(envelope)
  return async envelope =>
    (await isBeyond(engine, caller, envelope.taskId)) ? refused('not_found') : engine.execute(envelope)
}

/**
 * The tenant that a submit, a list, a count or a stream is about: the caller's own where it has one, else the one that is
 * asked for; null is none, which for a list means all.
 *
 * @throws Problem other_tenant where the caller's is another one
 */
export function tenantFor({ tenant }: Reaching, asked?: string | null): string | null {
  if (tenant === null) return asked ?? null
  if (asked !== undefined && asked !== null && asked !== tenant)
    throw new Problem('other_tenant', `This key is of the tenant ${tenant}, and ${asked} is another.`)
  return tenant
}

/**
 * Guards every route that names a task in its path, those that are written later among them. It stands behind the check of
 * the request's shape and before everything else, so that two that may not be told apart are told no at the same place.
 */
export function guardReach(app: FastifyInstance, engine: Tasks): void {
  app.addHook('onRoute', route => {
    if (!route.url.startsWith('/v1/tasks/:id')) return
    const others = route.preHandler === undefined ? [] : [route.preHandler].flat()
    route.preHandler = [
      (request, _reply, done) => {
        if (request.caller.tenant === null) return done()
        const { id } = request.params as { id: string }
        isBeyond(engine, request.caller, id).then(
          beyond => done(beyond ? new Problem('not_found') : undefined),
          done,
        )
      },
      ...others,
    ]
  })
}
