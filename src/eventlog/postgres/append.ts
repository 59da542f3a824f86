/** Appending: a call's members as the arguments of `rollcall_log.append_many`, and its answer as results. */
import type { Append, AppendResult, StoredEvent } from '../event-log.ts'
import type { Connections, Row } from './connections.ts'
import { isBadValue } from './errors.ts'
import type { Tail } from './tail.ts'

const NO_STREAM = -1
const ANY = -2

/**
 * Appends members that have been checked. Where Postgres refuses a value, the call is halved until the
 * member at fault stands alone and is rejected; the others are stored, in more commits than one.
 *
 * @param tail is told what each commit stored
 */
export async function append(
  connections: Connections,
  appends: readonly Append[],
  tail: Tail,
): Promise<AppendResult[]> {
  try {
    const rows = await connections.run({
      name: 'append_many',
      text: 'SELECT * FROM rollcall_log.append_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)',
      values: argumentsOf(appends),
    })
    return resultsOf(appends, rows[0]!, tail)
  } catch (error) {
    if (!isBadValue(error)) throw error
    if (appends.length === 1)
      return [{ kind: 'rejected', reason: 'invalid_event', message: (error as Error).message }]
    const half = appends.length >> 1
    const first = await append(connections, appends.slice(0, half), tail)
    return [...first, ...(await append(connections, appends.slice(half), tail))]
  }
}

/**
 * Array literals are written here: names, ids and numbers need no escaping (they were checked), and the
 * driver's own escaping costs more than the query.
 */
function argumentsOf(appends: readonly Append[]): string[] {
  const members: number[] = []
  const numbers: number[] = []
  const streams: string[] = []
  const ids: string[] = []
  const types: string[] = []
  const versions: number[] = []
  const data: string[] = []
  const metadata: string[] = []
  for (const [index, { stream, events }] of appends.entries()) {
    for (const [number, event] of events.entries()) {
      members.push(index + 1)
      numbers.push(number + 1)
      streams.push(stream)
      ids.push(event.id)
      types.push(event.type)
      versions.push(event.version)
      data.push(event.data)
      metadata.push(event.metadata)
    }
  }
  return [
    names(appends.map(({ stream }) => stream)),
    plain(
      appends.map(({ expected }) =>
        expected === 'any' ? ANY : expected === 'no_stream' ? NO_STREAM : expected,
      ),
    ),
    plain(members),
    plain(numbers),
    names(streams),
    plain(ids),
    names(types),
    plain(versions),
    data.join('\n'),
    metadata.join('\n'),
  ]
}

const plain = (values: readonly (string | number)[]): string => `{${values.join(',')}}`
/** In quotes, since a stream may be called null. */
const names = (values: readonly string[]): string => `{"${values.join('","')}"}`

/** Reads an array of numbers or booleans, none of them null; no array is an empty one. */
const parse = (array: string | null): string[] => array?.slice(1, -1).split(',') ?? []

function resultsOf(appends: readonly Append[], row: Row, tail: Tail): AppendResult[] {
  const [base, ...arrays] = row as [string, ...Row]
  const [heads, accepted, members, positions, revisions] = arrays.map(parse) as [Row, Row, Row, Row, Row]
  const asExpected = heads.length === 0
  const repeated = new Map(
    members.map((member, index) => [
      Number(member) - 1,
      { kind: 'appended' as const, revision: Number(revisions[index]), position: positions[index]! },
    ]),
  )
  let position = BigInt(base)
  const stored: StoredEvent[] = []
  const results = appends.map(({ stream, expected, events }, index): AppendResult => {
    const head = asExpected ? (expected === 'no_stream' ? NO_STREAM : Number(expected)) : Number(heads[index])
    if (asExpected || accepted[index] === 't') {
      if (tail.followed)
        for (const [number, event] of events.entries())
          stored.push({
            position: String(position + BigInt(number) + 1n),
            stream,
            revision: head + number + 1,
            id: event.id,
            type: event.type,
            version: event.version,
            data: event.data,
            metadata: event.metadata,
          })
      position += BigInt(events.length)
      return { kind: 'appended', revision: head + events.length, position: String(position) }
    }
    return repeated.get(index) ?? { kind: 'conflict', actual: head === NO_STREAM ? null : head }
  })
  tail.add(stored)
  return results
}
