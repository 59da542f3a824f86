/** `npm run simulate -- --from S --seeds N`: tells N stories and, of the first that goes wrong, the shortest. */
import { Command, InvalidArgumentError } from 'commander'
import { shrink, storyOf } from './shrink.ts'
import { simulate } from './simulation.ts'

const whole = (text: string): number => {
  const number = Number(text)
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('It is a whole number of at most nine digits.')
  return number
}

const { from, seeds } = new Command('simulate')
  .description('Seeded stories of clients, workers and services through losses and crashes, in virtual time.')
  .option('--from <seed>', 'the first seed', whole, 1)
  .option('--seeds <count>', 'how many', whole, 1_000)
  .parse()
  .opts<{ from: number; seeds: number }>()

const began = performance.now()
const totals = { steps: 0, events: 0, seconds: 0 }
const outcomes = new Map<string, number>()
for (let seed = from; seed < from + seeds; seed++) {
  const report = await simulate({ seed })
  if (report.violations.length > 0) {
    process.stdout.write(`seed ${seed} goes wrong:\n${report.violations.map(line => `  ${line}\n`).join('')}`)
    const shortest = await shrink({ seed })
    process.stdout.write(`\nIts shortest story:\n${storyOf(shortest).join('\n')}\n`)
    process.stdout.write(`${shortest.violations.map(line => `  ${line}\n`).join('')}`)
    process.exit(1)
  }
  totals.steps += report.steps
  totals.events += report.events
  totals.seconds += report.seconds
  for (const [status, count] of Object.entries(report.outcomes))
    outcomes.set(status, (outcomes.get(status) ?? 0) + count)
}
const wallSeconds = (performance.now() - began) / 1000
process.stdout.write(
  `${seeds} stories in ${wallSeconds.toFixed(1)} s: ${totals.steps} steps, ${totals.events} events, ` +
    `${(totals.seconds / 3600).toFixed(1)} hours of virtual time; ` +
    `${[...outcomes].map(([status, count]) => `${count} ${status}`).join(', ')}; nothing went wrong\n`,
)
