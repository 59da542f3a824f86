/** How many tasks there are of each status, for people. */
import type { CountsAnswer } from '../sdk/client.ts'
import { paintStatus, STATUS_WIDTH } from './format.ts'
import type { Terminal } from './terminal.ts'

export function countLines({ counts, lagSeconds }: CountsAnswer, { colors }: Terminal): string[] {
  const statuses = Object.keys(counts) as (keyof CountsAnswer['counts'])[]
  const texts = statuses.map(status => {
    const { count, exact } = counts[status]
    return `${exact ? '' : 'more than '}${count.toLocaleString('en-US')}`
  })
  const width = Math.max(...texts.map(text => text.length))
  const lines = statuses.map(
    (status, place) => `${paintStatus(status, colors, STATUS_WIDTH)}  ${texts[place]!.padStart(width)}`,
  )
  return lagSeconds >= 1 ? [...lines, colors.dim(`as of ${lagSeconds} s ago`)] : lines
}
