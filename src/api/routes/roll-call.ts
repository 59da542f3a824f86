/** What the whole says of itself: the roll call, and the walk that compares rows with streams. */
import { LogWentBackwardsError } from '../../eventlog/event-log.ts'
import type { Finding } from '../../projections/findings.ts'
import {
  NotProjectedError,
  repair,
  repairSetAside,
  UnknownPlaceError,
  type Walked,
  walkOn,
} from '../../projections/verify.ts'
import { requireScope } from '../access.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { Problem } from '../problems.ts'
import {
  type RollCallAnswer,
  rollCallSchema,
  type VerifyAnswer,
  verifyAnswerSchema,
  verifySchema,
} from '../schemas/roll-call.ts'

/** Of the log, in each step. */
const LOG_EVENTS = 5_000

export function rollCallRoutes(app: TypedApp, { rollCall, pool, log, logger }: AppParts): void {
  app.get(
    '/v1/rollcall',
    { config: { scope: 'audit', whole: true }, schema: { response: { 200: rollCallSchema } } },
    async () => (await rollCall.read()) satisfies RollCallAnswer,
  )

  app.post(
    '/v1/verify',
    {
      config: { scope: 'audit', whole: true },
      schema: { body: verifySchema, response: { 200: verifyAnswerSchema } },
    },
    async request => {
      const { cursor, limit, repair: asked } = request.body
      // Whoever audits changes nothing.
      if (asked) requireScope(request.caller, 'operate')
      const source = { pool, log }
      if (asked && !cursor) await repairSetAside(source)
      const walked = await step(cursor ?? null)
      // A small installation is looked at in one step.
      const rest =
        walked.next !== null && walked.rows < limit && walked.events === 0 ? await step(walked.next) : null
      const findings = distinct([...walked.findings, ...(rest?.findings ?? [])])
      const left = asked ? await mend(findings.map(({ taskId }) => taskId)) : null
      return {
        checked: { tasks: walked.rows + (rest?.rows ?? 0), events: walked.events + (rest?.events ?? 0) },
        findings: findings.map(finding => ({
          ...finding,
          repaired: left !== null && !left.has(finding.taskId),
        })),
        next: rest ? rest.next : walked.next,
      } satisfies VerifyAnswer

      function step(place: string | null): Promise<Walked> {
        return walkOn(source, place, { rows: limit, events: LOG_EVENTS }).catch(refuse)
      }

      /** @returns the tasks that are still at fault */
      async function mend(taskIds: readonly string[]): Promise<Set<string>> {
        const ids = [...new Set(taskIds)]
        if (ids.length > 0) logger.warn({ tasks: ids.length }, 'repairing tasks, as a person asked')
        return new Set((await repair(source, ids)).map(({ taskId }) => taskId))
      }
    },
  )
}

/** A row that is gone may be missed by its deadline and by the log. */
const distinct = (findings: readonly Finding[]): Finding[] =>
  [...new Map(findings.toReversed().map(one => [`${one.taskId} ${one.kind}`, one])).values()].toReversed()

function refuse(error: Error): never {
  if (error instanceof NotProjectedError) throw new Problem('read_model_rebuilding')
  if (error instanceof UnknownPlaceError || error instanceof LogWentBackwardsError)
    throw new Problem('invalid_request', 'cursor: is not one that a walk over this log has given', [
      { path: 'cursor', message: 'is not one that a walk over this log has given' },
    ])
  throw error
}
