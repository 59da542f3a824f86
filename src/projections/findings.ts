/** How rows and streams can differ. */

export const FINDING_KINDS = [
  /** The stream is there and the row is not. */
  'row_missing',
  'row_differs',
  /** An open task that no timer leaves. */
  'deadline_missing',
  'deadline_differs',
  /** Rows of a task that is in no stream. */
  'no_stream',
  /** An event is not chained to the one before it. */
  'chain_broken',
  /** The stream cannot be folded, and the task is not set aside. */
  'not_folded',
] as const
export type FindingKind = (typeof FINDING_KINDS)[number]

export interface Finding {
  taskId: string
  kind: FindingKind
  /** What is and what should be, bounded. */
  detail: string
}

export interface Examined {
  taskIds: string[]
  findings: Finding[]
}
