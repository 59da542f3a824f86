/** A wait that ends with its signal. */

/**
 * The promise's result, or null as soon as the signal is aborted: a network that hangs must not delay the end.
 *
 * @param onLate is given what comes after all
 */
export function unlessAborted<T>(
  promise: Promise<T>,
  signal: AbortSignal,
  onLate: (value: T) => void = () => {},
): Promise<T | null> {
  // No race with one promise for the whole life: it would keep a reaction for every page ever read.
  return new Promise((resolve, reject) => {
    let aborted = false
    const abort = () => {
      aborted = true
      resolve(null)
    }
    signal.addEventListener('abort', abort)
    promise
      .then(value => (aborted ? onLate(value) : resolve(value)), reject)
      .finally(() => signal.removeEventListener('abort', abort))
  })
}
