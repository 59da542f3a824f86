/** A task's refused commands, as clients see them. */
import { z } from 'zod'
import { CODES } from '../problems.ts'
import { actorSchema, countSchema, sourceSchema, timeSchema, uuidSchema } from './answer-fields.ts'

/** First and last ones, each up to so many. */
const SHOWN_MAX = 20

const refusalSchema = z
  .strictObject({
    number: z.int().min(1).describe('Its place among the refusals of the task, from 1.'),
    at: timeSchema,
    revision: countSchema.nullable().describe('The revision of the task when it was refused.'),
    trigger: z.string(),
    code: z.enum(CODES),
    message: z.string(),
    actor: actorSchema,
    source: sourceSchema,
    commandId: z.string(),
  })
  .meta({ id: 'Refusal', description: 'A command that was answered no.' })
export type Refusal = z.output<typeof refusalSchema>

export const taskRefusalsSchema = z
  .strictObject({
    taskId: uuidSchema,
    count: countSchema.describe('How many there were, also those that are no longer kept.'),
    first: z.array(refusalSchema).max(SHOWN_MAX).describe('The first ones.'),
    last: z.array(refusalSchema).max(SHOWN_MAX).describe('The last ones beyond those.'),
  })
  .meta({ id: 'TaskRefusals' })
export type TaskRefusals = z.output<typeof taskRefusalsSchema>
