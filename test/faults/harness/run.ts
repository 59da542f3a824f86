/** `npm run faults -- --seed N --minutes M [--json]`: one fault run, and its summary. */
import { Command, Option } from 'commander'
import { wholeNumber } from '../../../src/cli/values.ts'
import { type FaultReport, faultRun } from './fault-run.ts'
import { BROKERS, type BrokerKind, LOGS, type LogKind } from './kinds.ts'

const DEFAULT_SECONDS = 60
const SEED_MAX = 999_999_999

interface Options {
  log: LogKind
  broker: BrokerKind
  seed?: number
  minutes?: number
  seconds?: number
  json?: boolean
  keep?: boolean
}

await new Command('faults')
  .description(
    'kills, stops and cuts the parts of a service under load, then holds its streams against its promises',
  )
  .option(
    '--seed <number>',
    'repeats the plan of this seed (default: a random one)',
    wholeNumber(0, SEED_MAX),
  )
  .option('--minutes <number>', 'how long faults strike', wholeNumber(1, 24 * 60))
  .option('--seconds <number>', `the same in seconds (default: ${DEFAULT_SECONDS})`, wholeNumber(10, 3_600))
  .addOption(
    new Option('--log <kind>', 'where the log is: in Postgres, or on the double of EventStoreDB')
      .choices(LOGS)
      .default('postgres'),
  )
  .addOption(
    new Option('--broker <kind>', 'with a message broker, by which tasks are handed out and come back')
      .choices(BROKERS)
      .default('none'),
  )
  .option('--json', 'print one JSON object; progress goes to stderr either way')
  .option('--keep', 'keep data and logs also where nothing was found')
  .action(async ({ log: on, broker, seed, minutes, seconds, json, keep = false }: Options) => {
    const report = await faultRun(
      seed ?? Math.floor(Math.random() * SEED_MAX),
      minutes === undefined ? (seconds ?? DEFAULT_SECONDS) : minutes * 60,
      { on, broker, log: line => process.stderr.write(`${line}\n`), keep },
    )
    process.stdout.write(json ? `${JSON.stringify(report)}\n` : summaryOf(report))
    process.exitCode = report.verdict === 'ok' ? 0 : 1
  })
  .parseAsync()

function summaryOf(report: FaultReport): string {
  const { log, broker, seed, seconds, found, folder, faults, verdict, ...figures } = report
  const text = (value: unknown): string =>
    typeof value === 'object' && value !== null
      ? Object.entries(value)
          .map(([name, count]) => `${name} ${count}`)
          .join(', ')
      : String(value)
  return [
    `seed ${seed}, log in ${log}, broker ${broker}, ${seconds} s of faults: ${verdict}`,
    `  faults: ${text(faults)}`,
    ...Object.entries(figures).map(([name, value]) => `  ${name}: ${text(value)}`),
    ...found.map(line => `  - ${line}`),
    ...(folder ? [`data, logs and findings: ${folder}`] : []),
    '',
  ].join('\n')
}
