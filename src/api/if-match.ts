import { Problem } from './problems.ts'

/** `"12"`, or `"12.3"` with a part that moves with signals. */
export const ETAG = /^(?:W\/)?"(\d{1,9})(?:\.\d{1,15})?"$/

/** The revision of an If-Match header ("12" or "12.3", as ETags are), null where there is none. */
export function ifMatchRevision(header: string | undefined): number | null {
  if (header === undefined || header === '*') return null
  const match = ETAG.exec(header)
  if (!match) throw new Problem('invalid_request', 'If-Match must be an ETag of the task, such as "12".')
  return Number(match[1])
}
