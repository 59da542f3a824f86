/** Dead letters: a person looks at them, hands them in again or discards them. */
import type { DeadLetter } from '../../workers/dead-letters.ts'
import { notWaiting, RedrivesBusyError } from '../../workers/redrives.ts'
import { originOf } from '../origin.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { Problem } from '../problems.ts'
import {
  type DeadLetterList,
  type DeadLetterRow,
  type DeadLetterView,
  type DiscardAnswer,
  deadLetterListSchema,
  deadLetterSchema,
  discardAnswerSchema,
  discardSchema,
  letterParamsSchema,
  lettersQuerySchema,
  type RedriveAnswer,
  redriveAnswerSchema,
  redriveSchema,
} from '../schemas/dead-letters.ts'

export function deadLetterRoutes(app: TypedApp, { deadLetters, redrives, logger }: AppParts): void {
  app.get(
    '/v1/dead-letters',
    {
      config: { scope: 'audit', whole: true },
      schema: { querystring: lettersQuerySchema, response: { 200: deadLetterListSchema } },
    },
    async request => {
      const { status, reason, taskId, limit, cursor } = request.query
      const [{ letters, next }, waiting] = await Promise.all([
        deadLetters.list({
          status,
          reason: reason ?? null,
          taskId: taskId ?? null,
          before: cursor ?? null,
          limit,
        }),
        deadLetters.waiting(),
      ])
      return { letters: letters.map(rowOf), waiting, nextCursor: next } satisfies DeadLetterList
    },
  )

  app.get(
    '/v1/dead-letters/:id',
    {
      config: { scope: 'audit', whole: true },
      schema: { params: letterParamsSchema, response: { 200: deadLetterSchema } },
    },
    async request => {
      const [letter] = await deadLetters.read([request.params.id])
      if (!letter) throw new Problem('dead_letter_not_found')
      const headers = letter.record.headers.map(([name, value]) => ({
        name,
        value: value.toString('base64'),
      }))
      return { ...rowOf(letter), headers } satisfies DeadLetterView
    },
  )

  app.post(
    '/v1/dead-letters/redrive',
    {
      config: { scope: 'operate', whole: true },
      schema: { body: redriveSchema, response: { 200: redriveAnswerSchema } },
    },
    async request => {
      const { actor } = originOf(request)
      try {
        const results = await redrives.redrive(request.body.letterIds, actor.id)
        return { results } satisfies RedriveAnswer
      } catch (error) {
        if (error instanceof RedrivesBusyError) throw new Problem('overloaded', error.message)
        throw error
      }
    },
  )

  app.post(
    '/v1/dead-letters/discard',
    {
      config: { scope: 'operate', whole: true },
      schema: { body: discardSchema, response: { 200: discardAnswerSchema } },
    },
    async request => {
      const { letterIds, reason } = request.body
      const { actor } = originOf(request)
      const discarded = new Set(await deadLetters.discard(letterIds, actor.id, reason))
      if (discarded.size > 0)
        logger.warn({ letterIds: [...discarded], by: actor.id, reason }, 'dead letters were discarded')
      const rest = letterIds.filter(id => !discarded.has(id))
      const known = new Map(
        (await deadLetters.statuses(rest)).map(({ letterId, status }) => [letterId, status] as const),
      )
      return {
        results: letterIds.map(letterId =>
          discarded.has(letterId)
            ? { letterId, kind: 'discarded' as const }
            : notWaiting(letterId, known.get(letterId)),
        ),
      } satisfies DiscardAnswer
    },
  )
}

const bytes = (of: Buffer | null): string | null => of?.toString('base64') ?? null

const rowOf = ({
  letterId,
  status,
  record,
  valueBytes,
  fault,
  keptAt,
  redrives,
  redrivenAt,
  settled,
}: DeadLetter): DeadLetterRow => ({
  letterId,
  status,
  code: fault.code,
  message: fault.message,
  taskId: fault.taskId,
  topic: record.topic,
  partition: record.partition,
  offset: record.offset,
  timestamp: record.timestamp,
  key: bytes(record.key),
  value: bytes(record.value),
  valueBytes,
  keptAt: keptAt.toISOString(),
  redrives,
  redrivenAt: redrivenAt?.toISOString() ?? null,
  settledAt: settled?.at.toISOString() ?? null,
  settledBy: settled?.by ?? null,
  settledBecause: settled?.because ?? null,
})
