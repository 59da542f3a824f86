/** What the demo says at its end. */
import { relative } from 'node:path'
import { SELF } from '../failures.ts'
import type { Colors } from '../terminal.ts'
import type { RollCall } from './roll-call.ts'

export interface DemoReport {
  ok: boolean
  rollCall: RollCall
  /** Tasks that ended otherwise than the plan says. */
  surprises: string[]
  pictures: { checked: number; faults: string[]; folder: string; gallery: string }
  /** Address of the log, without a password. */
  log: string
  /** The data folder, null where it was removed. */
  dataDir: string | null
  seconds: number
}

const SHOWN_IDS = 5

export function reportText(report: DemoReport, colors: Colors): string {
  const { rollCall, pictures, surprises, dataDir, log } = report
  const { bold, dim, green, red } = colors
  const { accepted, succeeded, succeededAfterRetry, failed, cancelled, attemptsLostToLeases } = rollCall
  const row = (name: string, value: number, remark = '') =>
    `  ${name.padEnd(24)}${String(value).padStart(6)}${remark && dim(`   ${remark}`)}`
  // What must be 0 is green when it is.
  const zero = (name: string, found: readonly string[]) => {
    const paint = found.length === 0 ? green : red
    const ids = found.slice(0, SHOWN_IDS).join(', ')
    return `  ${name.padEnd(24)}${paint(String(found.length).padStart(6))}${ids && `   ${ids}`}`
  }
  const reasons = Object.entries(rollCall.failedBecause).map(([code, count]) => `${count} ${code}`)
  const elsewhere = log === 'postgres' ? '' : ` --log '${log}'`
  const lines = [
    `${bold('The roll call')}, read from the event log: ${accepted} streams, ${rollCall.events} events`,
    '',
    row('accepted', accepted),
    row('succeeded', succeeded, `${succeededAfterRetry} of them after a retry`),
    row('failed', failed, reasons.join(', ')),
    row('cancelled', cancelled),
    row(
      'attempts lost to leases',
      attemptsLostToLeases,
      'workers killed or hung; the tasks went on elsewhere',
    ),
    row('late results', rollCall.lateResults, 'kept in the history, without effect'),
    ...(rollCall.throughKafka > 0
      ? [row('reported through Kafka', rollCall.throughKafka, 'events; the tasks were handed out through it')]
      : []),
    row('pictures fetched', pictures.checked, 'every resultUrl was asked for its PNG'),
    '',
    zero('missing', rollCall.missing),
    zero('doubled', rollCall.doubled),
    zero('broken chains', rollCall.broken),
    zero('not as planned', surprises),
    zero('pictures at fault', pictures.faults),
    '',
    report.ok
      ? green(bold(`All ${accepted} tasks answered, each with one outcome. (${report.seconds} s)`))
      : red(bold('The roll call does not add up.')),
    '',
    `The pictures: ${bold(relative(process.cwd(), pictures.gallery))}`,
    ...(log === 'postgres' ? [] : [`The events stay at: ${log}`]),
    ...(dataDir === null ? [] : [`The data is kept: ${SELF} dev --data-dir ${dataDir}${elsewhere}`]),
    ...(report.ok ? [`Your turn:    ${bold(`${SELF} dev`)}, then ${SELF} --help`] : []),
  ]
  return lines.join('\n')
}
