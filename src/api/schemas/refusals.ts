/** A task's refused commands, as clients see them. */

export interface Refusal {
  /** Its place among the refusals of the task, from 1. */
  number: number
  at: string
  /** The task's revision when it was refused. */
  revision: number | null
  trigger: string
  code: string
  message: string
  actor: { kind: string; id: string }
  source: string
  commandId: string
}

export interface TaskRefusals {
  taskId: string
  /** How many there were, also those that are no longer kept. */
  count: number
  /** The first ones, up to 20. */
  first: Refusal[]
  /** The last ones beyond those, up to 20. */
  last: Refusal[]
}
