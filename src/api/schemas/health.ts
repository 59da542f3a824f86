/** What is said to whatever watches the process. */
import { z } from 'zod'

export const aliveSchema = z.strictObject({ status: z.literal('ok') }).meta({ id: 'Alive' })

export const readySchema = z
  .strictObject({
    status: z.enum(['ok', 'unavailable']),
    checks: z.array(
      z.strictObject({
        name: z.string().describe('A part of the service.'),
        ok: z.boolean(),
        reason: z.string().nullable().describe('Why it is not fit to serve.'),
        needed: z
          .boolean()
          .optional()
          .describe('False where the process is ready without it, which is asked for other things.'),
      }),
    ),
  })
  .meta({ id: 'Ready' })
