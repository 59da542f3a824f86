/**
 * Text that people read (error messages, reasons, notes, worker names) is made storable everywhere: Postgres
 * takes no NUL, and a lone surrogate is no UTF-8 (PITFALLS P9, S38). Payloads and results are kept as they are.
 */
export function storableText(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: NUL is the character at issue.
  return text.replace(/\u0000/g, '\uFFFD').replace(/\p{Surrogate}/gu, '\uFFFD')
}

/** Cuts a text to at most so many UTF-8 bytes, at a character's edge. */
export function cutText(text: string, bytes: number): string {
  if (Buffer.byteLength(text) <= bytes) return text
  const cut = Buffer.from(text)
    .subarray(0, bytes - 3)
    .toString('utf8')
    .replace(/\uFFFD+$/, '')
  return `${cut}…`
}
