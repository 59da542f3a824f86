/**
 * Bytes as JSON that can be kept exactly, request bodies and records alike. Refused, with the place: text that is not UTF-8 or not JSON,
 * nesting beyond the limit (JSON.stringify would die of it later, PITFALLS H6), numbers that JavaScript would
 * change, and keys that could reach a prototype.
 */
import { isUtf8 } from 'node:buffer'
import { parse } from 'secure-json-parse'
import { LIMITS } from '../domain/limits.ts'

const QUOTE = 0x22
const BACKSLASH = 0x5c
const MINUS = 0x2d
export type JsonRefusal = 'invalid_json' | 'json_too_deep' | 'number_not_exact' | 'forbidden_key'

/** These bytes are not JSON, or not such that it could be kept exactly. */
export class JsonRefusedError extends Error {
  readonly code: JsonRefusal

  constructor(code: JsonRefusal, message: string) {
    super(message)
    this.code = code
  }
}

/** What the deepest request puts around a payload: { tasks: [ { payload } ] }. */
const ENVELOPE_DEPTH = 3
/** 2^53 has 16 digits; a shorter number without an exponent is kept as it is. */
const HARMLESS_NUMBER_LENGTH = 15

/**
 * Parses without recursion into what may be deep.
 *
 * @param what names the bytes in messages, such as `The body`
 * @throws JsonRefusedError
 */
export function parseJsonBytes(body: Buffer, what: string): unknown {
  if (!isUtf8(body)) throw new JsonRefusedError('invalid_json', `${what} is not UTF-8.`)
  scan(body, what)
  // RFC 8259 lets a parser ignore a byte order mark, which some programs write before everything.
  const text = body.toString('utf8').replace(/^\uFEFF/, '')
  try {
    return parse(text, { protoAction: 'error', constructorAction: 'error' })
  } catch (error) {
    // The library says both by SyntaxError; whether it is JSON at all tells them apart.
    if (isJson(text))
      throw new JsonRefusedError(
        'forbidden_key',
        'The keys __proto__ and constructor.prototype are not accepted; rename them.',
      )
    throw new JsonRefusedError('invalid_json', `${what} is not JSON: ${(error as Error).message}`)
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** One pass over the bytes: depth and numbers. It need not understand JSON; what it lets pass is parsed next. */
function scan(body: Buffer, what: string): void {
  let depth = 0
  for (let at = 0; at < body.length; at++) {
    const byte = body[at]!
    if (byte === QUOTE) at = endOfString(body, at)
    else if (byte === 0x7b || byte === 0x5b) {
      depth++
      if (depth > LIMITS.jsonDepth + ENVELOPE_DEPTH)
        throw new JsonRefusedError(
          'json_too_deep',
          `${what} is nested deeper than ${LIMITS.jsonDepth} levels, at byte ${at}.`,
        )
    } else if (byte === 0x7d || byte === 0x5d) depth--
    else if (byte === MINUS || isDigit(byte)) at = checkNumber(body, at)
  }
}

function endOfString(body: Buffer, from: number): number {
  let at = from + 1
  while (at < body.length && body[at] !== QUOTE) at += body[at] === BACKSLASH ? 2 : 1
  return at
}

const isDigit = (byte: number): boolean => byte >= 0x30 && byte <= 0x39
const isNumberByte = (byte: number): boolean =>
  isDigit(byte) || byte === MINUS || byte === 0x2b || byte === 0x2e || byte === 0x65 || byte === 0x45

/** @returns where the number ends */
function checkNumber(body: Buffer, from: number): number {
  let end = from
  let exponent = false
  while (end < body.length && isNumberByte(body[end]!)) {
    if (body[end] === 0x65 || body[end] === 0x45) exponent = true
    end++
  }
  if (end - from > HARMLESS_NUMBER_LENGTH || exponent) {
    const text = body.toString('latin1', from, end)
    const value = Number(text)
    // No number at all, so no JSON either: the parser says it better.
    if (Number.isNaN(value)) return end - 1
    const whole = !exponent && !text.includes('.')
    if (whole ? !Number.isSafeInteger(value) : !Number.isFinite(value))
      throw new JsonRefusedError(
        'number_not_exact',
        `The number ${text.slice(0, 40)} at byte ${from} cannot be kept exactly; send it as a string.`,
      )
  }
  return end - 1
}
