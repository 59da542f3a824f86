/** Options that cannot be meant fail where they are given. */

/** A time in milliseconds, above 0. */
export function positiveMs(name: string, value: number): number {
  if (Number.isFinite(value) && value > 0) return value
  throw new TypeError(`${name} must be a positive number of milliseconds, not ${value}`)
}

export function wholeNumber(name: string, value: number, min: number, max: number): number {
  if (Number.isInteger(value) && value >= min && value <= max) return value
  throw new TypeError(`${name} must be a whole number from ${min} to ${max}, not ${value}`)
}
