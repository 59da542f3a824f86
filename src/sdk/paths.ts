/** Addresses within the service. */

export const taskPath = (taskId: string): string => `/v1/tasks/${encodeURIComponent(taskId)}`

type Value = string | number | Date | undefined

/** A query of what is given; a list is the same name again and again. */
export function query(fields: Record<string, Value | readonly string[]>): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined) continue
    for (const one of Array.isArray(value) ? value : [value])
      search.append(name, one instanceof Date ? one.toISOString() : String(one))
  }
  return search.size === 0 ? '' : `?${search}`
}

/** Labels as fields of a query: `label.customer=acme`. */
export const labelFields = (labels: Record<string, string> = {}): Record<string, string> =>
  Object.fromEntries(Object.entries(labels).map(([name, value]) => [`label.${name}`, value]))
