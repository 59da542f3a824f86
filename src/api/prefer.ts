/** The Prefer header (RFC 7240), of which `wait` alone is known here. What cannot be read is passed over, as it says. */

/** A longer wait is cut to this: proxies and clients give up on a silent connection some time. */
export const WAIT_SECONDS_MAX = 60

/** One preference of the list, with its parameters: a token, a value that may be quoted, whatever follows. */
const PREFERENCE = /(?:[^,"]|"(?:[^"\\]|\\.)*")+/g
const WAIT = /^\s*wait\s*=\s*(?:(\d{1,9})|"(\d{1,9})")\s*(?:;|$)/i

/** For how many seconds an answer may wait, cut to what is done here; null where no wait is preferred. */
export function preferredWait(header: string | string[] | undefined): number | null {
  for (const preference of String(header ?? '').match(PREFERENCE) ?? []) {
    const [, token, quoted] = WAIT.exec(preference) ?? []
    const seconds = Number(token ?? quoted ?? 0)
    // Of several the first counts.
    if (token !== undefined || quoted !== undefined)
      return seconds === 0 ? null : Math.min(seconds, WAIT_SECONDS_MAX)
  }
  return null
}
