/** The option that picks tasks by their status. */
import { InvalidArgumentError, Option } from 'commander'
import { collect } from './values.ts'

const STATUSES = ['PENDING', 'PROCESSING', 'RETRYING', 'SUCCESS', 'FAILED', 'CANCELLED'] as const
export type Status = (typeof STATUSES)[number]

export const statusOption = (): Option =>
  new Option(
    '--status <status>',
    `only these: ${STATUSES.join(', ')} (repeat, or separate by commas)`,
  ).argParser(parseStatuses)

function parseStatuses(text: string, before: readonly string[] = []): Status[] {
  const statuses = collect(text.toUpperCase(), before)
  const unknown = statuses.find(status => !STATUSES.some(one => one === status))
  if (unknown !== undefined) throw new InvalidArgumentError(`Allowed: ${STATUSES.join(', ')}.`)
  return statuses as Status[]
}
