/** `node --import=tsx test/faults/harness/table.ts <file>…`: the table of docs/faults.md from reports of `--json`, all on one log and with or without a broker. */
import { readFileSync } from 'node:fs'
import type { FaultReport } from './fault-run.ts'
import { type FaultKind, kindsOf } from './kinds.ts'

const reports = process.argv
  .slice(2)
  .flatMap(path => readFileSync(path, 'utf8').split('\n'))
  .filter(line => line !== '')
  .map(line => JSON.parse(line) as FaultReport)
const kinds = Object.keys(kindsOf(reports[0]?.log ?? 'postgres', reports[0]?.broker ?? 'none')) as FaultKind[]

const row = (cells: readonly (string | number)[]): string => `| ${cells.join(' | ')} |\n`
const head = [
  'seed',
  'seconds',
  ...kinds.map(kind => kind.replaceAll('_', ' ')),
  'tasks',
  'events',
  'attempts',
  'leases lost',
  'late results',
  'latest timer, s',
  'result',
]
const rows = reports.map(report => [
  report.seed,
  report.seconds,
  ...kinds.map(kind => report.faults[kind] ?? 0),
  report.tasks,
  report.events,
  report.attempts,
  report.leasesLost,
  report.lateResults,
  report.latestTimerSeconds,
  report.verdict,
])
process.stdout.write([row(head), row(head.map(() => '---')), ...rows.map(row)].join(''))
