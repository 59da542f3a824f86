/** Which events of the log a read is for. */
import type { StoredEvent } from './store.ts'
import type { ReadRequest } from './stubs.ts'

type Options = NonNullable<ReturnType<ReadRequest['getOptions']>>
type FilterOptions = NonNullable<ReturnType<Options['getFilter']>>

export interface EventFilter {
  allows(event: StoredEvent): boolean
  /** Events that one page looks at, null: as many as it may deliver. */
  maxSearchWindow: number | null
  /** A checkpoint is due after so many pages' worth of events. */
  checkpointIntervalMultiplier: number
}

/** Even without a filter the server's own epochs are not shown. */
const isShown = (event: StoredEvent): boolean => event.stream !== '$epoch-information'

export const NO_FILTER: EventFilter = {
  allows: isShown,
  maxSearchWindow: null,
  checkpointIntervalMultiplier: 0,
}

/** @throws RangeError, SyntaxError for a filter that is none */
export function readFilter(options: FilterOptions): EventFilter {
  const byStream = options.getStreamIdentifier()
  const expression = byStream ?? options.getEventType()
  if (!expression) throw new RangeError('the filter is neither on stream names nor on event types')
  const text = byStream
    ? (event: StoredEvent): string => event.stream
    : (event: StoredEvent): string => event.type
  const matches = matcher(expression.getRegex(), expression.getPrefixList())
  if (!options.hasMax() && !options.hasCount()) throw new RangeError("'None' is not a valid filter window")
  return {
    allows: event => matches(text(event)) && isShown(event),
    maxSearchWindow: options.hasMax() ? options.getMax() : null,
    checkpointIntervalMultiplier: options.getCheckpointintervalmultiplier(),
  }
}

function matcher(regex: string, prefixes: readonly string[]): (text: string) => boolean {
  if (regex !== '') {
    const pattern = new RegExp(regex)
    return text => pattern.test(text)
  }
  const [only] = prefixes
  if (only !== undefined && prefixes.length === 1) return text => text.startsWith(only)
  return text => prefixes.some(prefix => text.startsWith(prefix))
}
