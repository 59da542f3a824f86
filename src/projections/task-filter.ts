/** Which tasks a list or a count is about, as conditions of SQL over `rollcall.tasks t`. */
import type { Status } from '../domain/lifecycle.ts'

/** Every field that is there narrows; none is everything. */
export interface TaskFilter {
  statuses?: readonly Status[] | undefined
  type?: string | undefined
  tenant?: string | undefined
  /** All of these labels, with these values. */
  labels?: Readonly<Record<string, string>> | undefined
  correlationId?: string | undefined
  /** From this time on; ISO 8601. */
  createdAfter?: string | undefined
  /** Earlier than this time, so that two ranges that meet share no task. */
  createdBefore?: string | undefined
  /** Part of the error's message, or the whole of its code. */
  error?: string | undefined
}

/** The conditions of a statement and the values of its places. */
export class Conditions {
  readonly values: unknown[] = []
  readonly #all: string[] = []

  /** Adds a value and answers its place in the statement. */
  place(value: unknown): string {
    this.values.push(value)
    return `$${this.values.length}`
  }

  add(condition: string): void {
    this.#all.push(condition)
  }

  /** `WHERE …`, or nothing where everything is asked for. */
  get where(): string {
    return this.#all.length > 0 ? `WHERE ${this.#all.join(' AND ')}` : ''
  }
}

/** Adds a filter's conditions. Indexes that hold some rows only are used where a condition says so itself. */
export function addFilter(to: Conditions, filter: TaskFilter): void {
  const { statuses, type, tenant, labels, correlationId, createdAfter, createdBefore, error } = filter
  if (statuses?.length === 1) to.add(`t.status = ${to.place(statuses[0])}`)
  else if (statuses) to.add(`t.status = ANY (${to.place(statuses)}::text[])`)
  if (type !== undefined) to.add(`t.type = ${to.place(type)}`)
  if (tenant !== undefined) to.add(`t.tenant = ${to.place(tenant)}`)
  if (labels && Object.keys(labels).length > 0)
    to.add(`t.labels <> '{}' AND t.labels @> ${to.place(JSON.stringify(labels))}::jsonb`)
  if (correlationId !== undefined) to.add(`t.correlation_id = ${to.place(correlationId)}`)
  if (createdAfter !== undefined) to.add(`t.created_at >= ${to.place(createdAfter)}::timestamptz`)
  if (createdBefore !== undefined) to.add(`t.created_at < ${to.place(createdBefore)}::timestamptz`)
  if (error !== undefined) {
    const part = to.place(`%${error.replace(/[\\%_]/g, '\\$&')}%`)
    to.add(
      `t.error_code IS NOT NULL AND (t.error_code = ${to.place(error)} OR t.error_message ILIKE ${part})`,
    )
  }
}

/** Whether a filter may have to read many rows for each one it finds: few such questions run at once. */
export const isSearch = ({ labels, error }: TaskFilter): boolean =>
  labels !== undefined || error !== undefined

/** Whether a filter is more than what one index answers in order, so that the question itself may be at fault. */
export function mayBeSlow({ statuses, type, ...others }: TaskFilter): boolean {
  return (statuses && type !== undefined) || Object.values(others).some(field => field !== undefined)
}
