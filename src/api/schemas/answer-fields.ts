/**
 * What answers are made of. Answers are written as they are, without a check on the way; the compiler holds the routes
 * to these schemas, and the tests hold every answer they get to them.
 */
import { z } from 'zod'
import { actorSchema as domainActor, SOURCES } from '../../domain/events.ts'
import { STATUSES } from '../../domain/lifecycle.ts'
import { LIMITS, NAME_PATTERN } from '../../domain/limits.ts'

export const timeSchema = z
  .string()
  .regex(/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$/)
  .meta({ id: 'Time', format: 'date-time', description: 'ISO 8601 in UTC, with milliseconds.' })

export const uuidSchema = z
  .string()
  .regex(/^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/)
  .meta({ id: 'Uuid', format: 'uuid', description: 'A UUID in lower case.' })

export const statusSchema = z.enum(STATUSES).meta({ id: 'Status', description: 'Where a task stands.' })

export const hashSchema = z
  .string()
  .regex(/^[0-9a-f]{64}$/)
  .meta({ id: 'Hash', description: 'SHA-256 of an event, its predecessor among what is hashed.' })

export const typeSchema = z.string().regex(NAME_PATTERN).meta({ id: 'TaskType' })

export const labelsSchema = z
  .record(z.string().regex(NAME_PATTERN), z.string())
  .meta({ id: 'Labels', maxProperties: LIMITS.labels })

export const actorSchema = domainActor.meta({ id: 'Actor', description: 'Who asked.' })
export const sourceSchema = z.enum(SOURCES).meta({ id: 'Source', description: 'The way it was asked.' })
export const commandIdSchema = z.string().min(1).max(128)

/** Counts from 0. */
export const countSchema = z.int().min(0)
export const revisionSchema = countSchema.describe('Number of the last event of the task, from 0.')
export const runSchema = z.int().min(1).describe('1, and one more for each retry by hand of a failed task.')
export const attemptSchema = z.int().min(1).describe('The one that waits, runs or ran last, over all runs.')
export const secondsSchema = z.number().min(0)

/** What users or workers hand in as they like: the only place where an answer is open. */
export const anyJsonSchema = z.unknown().meta({ description: 'Any JSON, as it was handed in.' })

export const fieldErrorSchema = z
  .strictObject({
    path: z.string().describe('Where, as a path into the body or the query, such as timeouts.queueMs.'),
    message: z.string(),
  })
  .meta({ id: 'FieldError' })
