import type { Json } from './events.ts'

/** JSON with sorted keys, so that the same value always gives the same text, whoever wrote it. */
export function canonicalJson(value: Json): string {
  return JSON.stringify(value, (_key, inner: Json) => {
    if (inner === null || typeof inner !== 'object' || Array.isArray(inner)) return inner
    // A null prototype takes a key named __proto__ as a key like any other.
    const sorted: Record<string, Json> = Object.create(null)
    for (const key of Object.keys(inner).sort()) sorted[key] = inner[key]!
    return sorted
  })
}
