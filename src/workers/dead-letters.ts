/**
 * Dead letters: records that can never be handled as they are, kept byte for byte until a person redrives or discards
 * them. `src/workers/postgres/dead-letters.ts` is the adapter.
 */
import { createHash } from 'node:crypto'
import type { IncomingRecord } from '../broker/broker.ts'

/** Why a record became a dead letter. `docs/worker-events.md` lists them, which a test holds it to. */
export const DEAD_LETTER_REASONS = {
  no_key: 'The record has no key; it has to be the id of its task.',
  key_mismatch: 'The key is not the id of the task that the value names.',
  no_value: 'The record has no value.',
  record_too_large: 'The value is larger than is read.',
  invalid_json: 'The value is not JSON in UTF-8.',
  json_too_deep: 'The value is nested too deep.',
  number_not_exact: 'A number cannot be kept exactly.',
  forbidden_key: 'The value has a key that is not accepted.',
  invalid_event: 'The value does not fit the schema of worker events.',
  content_too_large: 'A field holds more bytes than it may.',
  not_found: 'No task has this id.',
  set_aside: 'The stream of the task cannot be read; an operator has to look at it.',
  too_large: 'The event would be larger than the log accepts.',
  internal_error: 'The service failed on this record again and again; the reason is in its log.',
} as const
export type DeadLetterReason = keyof typeof DEAD_LETTER_REASONS

export const LETTER_STATUSES = ['waiting', 'redriven', 'discarded'] as const
export type LetterStatus = (typeof LETTER_STATUSES)[number]

/** What is wrong with a record. */
export interface Fault {
  code: DeadLetterReason
  /** What was wrong in this case. */
  message: string
  /** Where it is known. */
  taskId: string | null
}

export interface DeadRecord {
  record: IncomingRecord
  fault: Fault
}

export interface DeadLetter {
  letterId: string
  status: LetterStatus
  /** As the broker gave it; a list has less of it. */
  record: IncomingRecord
  /** Of the whole value; null where there is none. */
  valueBytes: number | null
  fault: Fault
  keptAt: Date
  redrives: number
  redrivenAt: Date | null
  settled: { at: Date; by: string; because: string | null } | null
}

export interface LetterQuery {
  status: LetterStatus
  reason: string | null
  taskId: string | null
  /** The place of the page before; null is the newest. */
  before: string | null
  limit: number
}

export interface DeadLetters {
  /** Keeps records; those that are kept already stay as they are. Resolves when they are durable. */
  keep(records: readonly DeadRecord[]): Promise<void>
  /** The newest first, without headers; keys and values are cut to `LISTED_BYTES`. `next` is null at the end. */
  list(query: LetterQuery): Promise<{ letters: DeadLetter[]; next: string | null }>
  /** Whole letters by their ids; those that are not there are left out. */
  read(letterIds: readonly string[]): Promise<DeadLetter[]>
  statuses(letterIds: readonly string[]): Promise<{ letterId: string; status: LetterStatus }[]>
  /** How many wait for a person. */
  waiting(): Promise<number>
  /**
   * Hands those that wait to `handle`, whole and the oldest first, and keeps what it says of each, in their order. Nobody
   * else redrives or discards them meanwhile: whoever asks waits, and finds them as they are then. Where `handle` throws
   * they stay as they were.
   */
  redrive(
    letterIds: readonly string[],
    by: string,
    handle: (letters: readonly DeadLetter[]) => Promise<Redrive[]>,
  ): Promise<void>
  /** Ends the waiting of letters. @returns the ids of those that waited */
  discard(letterIds: readonly string[], by: string, because: string): Promise<string[]>
}

/** What becomes of a letter that was handed in again. */
export type Redrive =
  | { kind: 'settled'; because: string }
  /** In vain; this is wrong now. */
  | { kind: 'remains'; fault: Fault }
  /** It could not be tried. */
  | { kind: 'untried' }

export const LISTED_BYTES = 1_024

/** Made from the record's place and bytes, so that the same record has the same id wherever it is delivered. */
export function letterIdOf({
  topic,
  partition,
  offset,
  timestamp,
  key,
  value,
  headers,
}: IncomingRecord): string {
  const digest = createHash('sha256')
  const add = (part: Buffer | string | null): void => {
    const bytes = part === null ? null : Buffer.from(part as string)
    digest.update(bytes === null ? '-' : `${bytes.length}:`)
    if (bytes) digest.update(bytes)
  }
  for (const part of [topic, String(partition), offset, String(timestamp), key, value]) add(part)
  for (const [name, content] of headers) {
    add(name)
    add(content)
  }
  const id = digest.digest().subarray(0, 16)
  // Version 8 of RFC 9562: made by a rule of one's own.
  id[6] = (id[6]! & 0x0f) | 0x80
  id[8] = (id[8]! & 0x3f) | 0x80
  return id.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}
