/** The roll call and what verifies it. */
import { z } from 'zod'
import type { Finding } from '../../projections/findings.ts'
import type { RollCallReport } from '../../projections/roll-call-report.ts'

export type RollCallAnswer = RollCallReport

export const VERIFY_ROWS_MAX = 1_000
export const verifySchema = z.strictObject({
  /** `next` of the answer before; left out, a walk begins. */
  cursor: z.string().min(1).max(1_024).nullish(),
  /** Tasks to compare in this step. */
  limit: z.int().min(1).max(VERIFY_ROWS_MAX).default(200),
  /** Mends what is found. */
  repair: z.boolean().default(false),
})
export type VerifyRequest = z.input<typeof verifySchema>

export interface VerifyAnswer {
  checked: {
    /** Tasks whose rows were compared with their streams. */
    tasks: number
    /** Events of the log that were passed in search of tasks without a row. */
    events: number
  }
  findings: (Finding & {
    /** It was asked to be mended, and nothing is found any more. */
    repaired: boolean
  })[]
  /** Give it back as `cursor`; null when everything was looked at. */
  next: string | null
}
