/** The roll call and what verifies it. */
import { z } from 'zod'
import { FINDING_KINDS } from '../../projections/findings.ts'
import { TYPES_MAX, UNACCOUNTED_REASONS } from '../../projections/roll-call-report.ts'
import { countSchema, secondsSchema, statusSchema, timeSchema, uuidSchema } from './answer-fields.ts'

const namedTasksSchema = z.strictObject({
  count: countSchema,
  tasks: z
    .array(z.strictObject({ taskId: uuidSchema, detail: z.string().describe('What is wrong with it.') }))
    .describe('The first of them, the oldest fault first.'),
})

/** Its fields say what those of `RollCallReport` say. */
export const rollCallSchema = z
  .strictObject({
    at: timeSchema.describe('When it was called, by the clock of the database.'),
    tasks: countSchema.describe('All there are.'),
    open: countSchema,
    groups: z.array(
      z.strictObject({
        type: z
          .string()
          .describe(
            `A task type; "(other types)" sums up the rarest where there are more than ${TYPES_MAX}.`,
          ),
        status: statusSchema,
        count: countSchema,
        oldestCreatedAt: timeSchema.describe('When the oldest of them was submitted.'),
        overdue: countSchema.describe('Those whose deadline passed longer ago than the grace.'),
      }),
    ),
    withoutLiveWorker: namedTasksSchema.describe('Running, and their lease has ended or is missing.'),
    deadLetters: countSchema.describe('Records of workers that could not be handled and wait for a person.'),
    unaccounted: z.strictObject({
      total: countSchema
        .nullable()
        .describe('Null while it cannot be known. A task with two reasons counts once.'),
      unknownBecause: z.string().nullable(),
      reasons: z.array(namedTasksSchema.extend({ reason: z.enum(UNACCOUNTED_REASONS) })),
    }),
    lag: z.strictObject({
      events: countSchema
        .nullable()
        .describe('Events of the log that are not in the read model; null where the log went backwards.'),
      moreEvents: z.boolean().describe('There are more; they are counted up to a limit.'),
      seconds: secondsSchema,
      boundSeconds: secondsSchema,
    }),
    verified: z
      .strictObject({ from: timeSchema, at: timeSchema })
      .nullable()
      .describe('The last walk that compared everything with the log; null where none has ended yet.'),
    graceMs: countSchema,
  })
  .meta({ id: 'RollCall' })
export type RollCallAnswer = z.output<typeof rollCallSchema>

export const VERIFY_ROWS_MAX = 1_000
export const verifySchema = z
  .strictObject({
    cursor: z
      .string()
      .min(1)
      .max(1_024)
      .nullish()
      .describe('next of the answer before; left out, a walk begins.'),
    limit: z.int().min(1).max(VERIFY_ROWS_MAX).default(200).describe('Tasks to compare in this step.'),
    repair: z.boolean().default(false).describe('Mends what is found.'),
  })
  .meta({ id: 'Verify' })
export type VerifyRequest = z.input<typeof verifySchema>

export const verifyAnswerSchema = z
  .strictObject({
    checked: z.strictObject({
      tasks: countSchema.describe('Tasks whose rows were compared with their streams.'),
      events: countSchema.describe('Events of the log that were passed in search of tasks without a row.'),
    }),
    findings: z.array(
      z.strictObject({
        taskId: uuidSchema,
        kind: z.enum(FINDING_KINDS),
        detail: z.string().describe('What is and what should be.'),
        repaired: z.boolean().describe('It was asked to be mended, and nothing is found any more.'),
      }),
    ),
    next: z.string().nullable().describe('Give it back as cursor; null when everything was looked at.'),
  })
  .meta({ id: 'VerifyAnswer' })
export type VerifyAnswer = z.output<typeof verifyAnswerSchema>
