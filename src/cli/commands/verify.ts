import type { Command } from 'commander'
import type { Client, VerifyAnswer } from '../../sdk/client.ts'
import { connect } from '../connection.ts'
import { EXIT, SELF } from '../failures.ts'
import { printable } from '../format.ts'
import type { Terminal } from '../terminal.ts'

type Finding = VerifyAnswer['findings'][number]

/** What became of a whole walk. */
interface Verified {
  /** Nothing was found, or everything was repaired. */
  clean: boolean
  checked: VerifyAnswer['checked']
  /** Tasks with findings. */
  found: number
  repaired: number
  /** The first `FINDINGS_MAX`. */
  findings: Finding[]
}

const FINDINGS_MAX = 1_000
const SHOWN_MAX = 50
const PAGE = 500
/** A step may wait for a database that is busy with others. */
const STEP_MS = 60_000
const PROGRESS_MS = 2_000

export function addVerify(program: Command): void {
  program
    .command('verify')
    .description('compare every row with its stream and the log with the rows, while the service runs')
    .option('--repair', 'fold what differs again, in place')
    .action(async ({ repair = false }: { repair?: boolean }, command: Command) => {
      const { client, terminal } = connect(command)
      const verified = await walk(client, terminal, repair)
      terminal.result(verified, () => reportLines(verified, repair, terminal).join('\n'))
      if (!verified.clean) process.exitCode = EXIT.no
    })
}

async function walk(client: Client, terminal: Terminal, repair: boolean): Promise<Verified> {
  const checked = { tasks: 0, events: 0 }
  const findings: Finding[] = []
  const found = new Set<string>()
  const left = new Set<string>()
  let saidAt = performance.now()
  for (let cursor: string | null | undefined; cursor !== null; ) {
    const page: VerifyAnswer = await client.verify(
      { repair, limit: PAGE, ...(cursor !== undefined && { cursor }) },
      { timeoutMs: STEP_MS },
    )
    checked.tasks += page.checked.tasks
    checked.events += page.checked.events
    for (const finding of page.findings) {
      found.add(finding.taskId)
      if (!finding.repaired) left.add(finding.taskId)
      if (findings.length < FINDINGS_MAX) findings.push(finding)
    }
    if (performance.now() - saidAt > PROGRESS_MS) {
      terminal.hint(progressText(checked, found.size))
      saidAt = performance.now()
    }
    cursor = page.next
  }
  return { clean: left.size === 0, checked, found: found.size, repaired: found.size - left.size, findings }
}

const number = (value: number): string => value.toLocaleString('en-US')
const progressText = ({ tasks, events }: VerifyAnswer['checked'], found: number): string =>
  `${number(tasks)} tasks compared, ${number(events)} events of the log passed, ${number(found)} at fault`

function reportLines(verified: Verified, repair: boolean, { colors }: Terminal): string[] {
  const { clean, checked, found, repaired, findings } = verified
  const { green, red, bold, dim } = colors
  if (found === 0)
    return [green(bold(`the rows of all ${number(checked.tasks)} tasks are what their streams say`))]
  const shown = findings.slice(0, SHOWN_MAX)
  const lines = shown.map(({ taskId, kind, detail, repaired }) =>
    [taskId, (repaired ? green : red)(kind), printable(detail), ...(repaired ? [dim('repaired')] : [])].join(
      '  ',
    ),
  )
  if (found > shown.length) lines.push(dim(`and more: ${number(found)} tasks in all`))
  const counted = `${number(found)} of ${number(checked.tasks)} tasks differ from their streams`
  if (clean) lines.push(green(bold(`${counted}; all were repaired`)))
  else if (repair) lines.push(red(bold(`${counted}; ${number(found - repaired)} could not be repaired`)))
  else lines.push(red(bold(counted)), dim(`${SELF} verify --repair folds them again`))
  return lines
}
