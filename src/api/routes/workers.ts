/** What workers ask: claim, start, report, heartbeat, and the same commands one by one. */
import { randomUUID } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import type { Command, CommandEnvelope, Fence } from '../../domain/commands.ts'
import type { Actor } from '../../domain/events.ts'
import type { Task } from '../../domain/task.ts'
import type { Answer } from '../../engine/answer.ts'
import { NO_TASK } from '../../workers/leases.ts'
import { commandOf, hashToken } from '../../workers/worker-events.ts'
import { taskOf } from '../answers.ts'
import { goneSignal } from '../gone.ts'
import { originOf } from '../origin.ts'
import { type AppParts, BATCH_BODY_BYTES, type TypedApp } from '../parts.ts'
import { invalid } from '../problems.ts'
import { beyondReach, executeWithin } from '../reach.ts'
import { taskParamsSchema, taskViewSchema } from '../schemas/tasks.ts'
import {
  type ClaimAnswer,
  claimAnswerSchema,
  claimSchema,
  failSchema,
  type HeartbeatAnswer,
  heartbeatAnswerSchema,
  heartbeatSchema,
  type Report,
  type ReportResult,
  type ReportsAnswer,
  releaseSchema,
  reportSchema,
  reportsAnswerSchema,
  reportsSchema,
  type StartResult,
  type StartsAnswer,
  startSchema,
  startsAnswerSchema,
  startsSchema,
  stepSchema,
  succeedSchema,
} from '../schemas/workers.ts'
import { taskAnswer } from '../task-answer.ts'
import { claimedTask } from '../views.ts'

export function workerRoutes(app: TypedApp, parts: AppParts): void {
  // Waiting claims end when the service begins to stop; their workers ask again elsewhere or later.
  const stopping = new AbortController()
  app.addHook('preClose', async () => stopping.abort())
  claimRoute(app, parts, stopping.signal)
  startRoute(app, parts)
  reportRoute(app, parts)
  heartbeatRoute(app, parts)
  singleRoutes(app, parts)
}

function claimRoute(app: TypedApp, { claims }: AppParts, stopping: AbortSignal): void {
  app.post(
    '/v1/workers/claim',
    { config: { scope: 'work' }, schema: { body: claimSchema, response: { 200: claimAnswerSchema } } },
    async (request, reply) => {
      const { leaseToken, ...claim } = request.body
      const { source } = originOf(request)
      const signal = AbortSignal.any([stopping, goneSignal(reply)])
      // Whoever takes nothing new has nothing to wait for.
      const waitMs = claim.max === 0 ? 0 : claim.waitMs
      const tasks = await claims.claim(
        { ...claim, waitMs, leaseTokenHash: hashToken(leaseToken), source, tenant: request.caller.tenant },
        signal,
      )
      return { tasks: tasks.map(claimedTask) } satisfies ClaimAnswer
    },
  )
}

function startRoute(app: TypedApp, { engine, leases }: AppParts): void {
  app.post(
    '/v1/workers/start',
    {
      config: { scope: 'work' },
      schema: { body: startsSchema, response: { 200: startsAnswerSchema } },
      bodyLimit: BATCH_BODY_BYTES,
    },
    async request => {
      const origin = originOf(request)
      const { worker, leaseToken, tasks, commandId = randomUUID() } = request.body
      const leaseTokenHash = hashToken(leaseToken)
      const actor: Actor = { kind: 'worker', id: worker }
      const execute = executeWithin(engine, request.caller)
      const answers = await Promise.all(
        tasks.map(({ taskId, attempt }) =>
          execute({
            taskId,
            command: { trigger: 'START', worker, attempt, leaseTokenHash },
            commandId,
            ...origin,
            actor,
            causationId: null,
            ifRevision: null,
          }),
        ),
      )
      await leases.markTold(
        answers.flatMap((answer, index) =>
          answer.kind === 'refused'
            ? [{ attempt: tasks[index]!.attempt, leaseTokenHash, task: answer.task }]
            : [],
        ),
      )
      const results = answers.map((answer, index) => startResult(tasks[index]!.taskId, answer))
      return { results } satisfies StartsAnswer
    },
  )
}

function startResult(taskId: string, answer: Answer): StartResult {
  const { kind } = answer
  if (kind === 'refused') return { taskId, kind, code: answer.code, message: answer.message }
  // "repeated" is said to the holder of the lease alone, so a START that is not refused leaves the task running.
  if (answer.task.status !== 'PROCESSING') throw new Error(`bug: START left ${answer.task.status}`)
  const { leaseUntil, executionDeadlineAt } = claimedTask(answer.task)
  return { taskId, kind, leaseUntil, executionDeadlineAt }
}

function reportRoute(app: TypedApp, { engine, leases }: AppParts): void {
  app.post(
    '/v1/workers/report',
    {
      config: { scope: 'work' },
      schema: { body: reportsSchema, response: { 200: reportsAnswerSchema } },
      bodyLimit: BATCH_BODY_BYTES,
    },
    async request => {
      const origin = originOf(request)
      const actor: Actor = { kind: 'worker', id: request.body.worker }
      const refused: (Fence & { task: Task | null })[] = []
      const execute = executeWithin(engine, request.caller)
      const results = await Promise.all(
        request.body.reports.map(async (member): Promise<ReportResult> => {
          const report = reportSchema.safeParse(member)
          if (!report.success) {
            const problem = invalid(report.error)
            return { taskId: taskIdIn(member), kind: 'refused', code: problem.code, message: problem.message }
          }
          const { taskId, commandId } = report.data
          const command = commandOf(report.data)
          const answer = await execute({
            taskId,
            command,
            commandId: commandId ?? randomUUID(),
            ...origin,
            actor,
            causationId: null,
            ifRevision: null,
          })
          if (answer.kind === 'refused') {
            refused.push({ ...command, task: answer.task })
            return { taskId, kind: 'refused', code: answer.code, message: answer.message }
          }
          return { taskId, kind: answer.kind, status: answer.task.status, revision: answer.task.revision }
        }),
      )
      await leases.markTold(refused)
      return { results } satisfies ReportsAnswer
    },
  )
}

/** The id in a report that is not valid, so that its worker knows which one was meant. */
function taskIdIn(member: unknown): string | null {
  const taskId = typeof member === 'object' && member !== null && 'taskId' in member ? member.taskId : null
  return typeof taskId === 'string' ? taskId.slice(0, 64) : null
}

function heartbeatRoute(app: TypedApp, { engine, leases }: AppParts): void {
  app.post(
    '/v1/workers/heartbeat',
    {
      config: { scope: 'work' },
      schema: { body: heartbeatSchema, response: { 200: heartbeatAnswerSchema } },
      bodyLimit: BATCH_BODY_BYTES,
    },
    async request => {
      const { beats } = request.body
      const taskIds = beats.map(({ taskId }) => taskId)
      const beyond = await beyondReach(engine, request.caller, taskIds)
      const answers = await leases.heartbeat(
        beats
          .filter(({ taskId }) => !beyond.has(taskId))
          .map(beat => ({
            taskId: beat.taskId,
            attempt: beat.attempt,
            leaseTokenHash: hashToken(beat.leaseToken),
            progress: beat.progress ?? null,
          })),
      )
      const answered = answers.values()
      const results = taskIds.map(id => (beyond.has(id) ? NO_TASK : answered.next().value!))
      return {
        results: results.map((result, index) => ({
          taskId: beats[index]!.taskId,
          attempt: beats[index]!.attempt,
          state: result.state,
          until: result.state === 'held' ? new Date(result.until).toISOString() : null,
          reason: result.state === 'held' ? null : result.reason,
        })),
      } satisfies HeartbeatAnswer
    },
  )
}

/** The worker's commands for one task by its address: for workers fed by other means, and for people with curl. */
function singleRoutes(app: TypedApp, parts: AppParts): void {
  const execute = async (
    request: FastifyRequest,
    taskId: string,
    command: Command & Fence,
    worker: string | null,
    commandId?: string,
  ) => {
    const origin = originOf(request)
    const envelope: CommandEnvelope = {
      taskId,
      command,
      commandId: commandId ?? randomUUID(),
      ...origin,
      actor: worker === null ? origin.actor : { kind: 'worker', id: worker },
      causationId: null,
      ifRevision: null,
    }
    const answer = await parts.engine.execute(envelope)
    if (answer.kind === 'refused') await parts.leases.markTold([{ ...command, task: answer.task }])
    return taskAnswer(parts, taskOf(answer).task)
  }
  app.post(
    '/v1/tasks/:id/start',
    {
      config: { scope: 'work' },
      schema: { params: taskParamsSchema, body: startSchema, response: { 200: taskViewSchema } },
    },
    async request => {
      const { worker, attempt, leaseToken, commandId } = request.body
      const command = { trigger: 'START', worker, attempt, leaseTokenHash: hashToken(leaseToken) } as const
      return execute(request, request.params.id, command, worker, commandId)
    },
  )
  const reports = [
    ['step', 'STEP', stepSchema],
    ['succeed', 'SUCCEED', succeedSchema],
    ['fail', 'FAIL', failSchema],
    ['release', 'RELEASE', releaseSchema],
  ] as const
  for (const [path, trigger, schema] of reports) {
    app.post(
      `/v1/tasks/:id/${path}`,
      {
        config: { scope: 'work' },
        schema: { params: taskParamsSchema, body: schema, response: { 200: taskViewSchema } },
      },
      async request => {
        const taskId = request.params.id
        // Path and schema were chosen together, a link that a loop hides from TypeScript.
        const report = { trigger, taskId, ...request.body } as Report
        return execute(request, taskId, commandOf(report), request.body.worker ?? null, report.commandId)
      },
    )
  }
}
