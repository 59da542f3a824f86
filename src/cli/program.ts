/** Puts the commands together. Each loads what it needs when it runs, so that help and `get` come at once. */
import { Command, CommanderError } from 'commander'
import { packageVersion } from '../api/version.ts'
import { addCancel } from './commands/cancel.ts'
import { addDeadLetters } from './commands/dead-letters.ts'
import { addDemo } from './commands/demo.ts'
import { addDemoWorker } from './commands/demo-worker.ts'
import { addDev } from './commands/dev.ts'
import { addGet } from './commands/get.ts'
import { addHistory } from './commands/history.ts'
import { addKeys } from './commands/keys.ts'
import { addList } from './commands/list.ts'
import { addLog } from './commands/log.ts'
import { addMigrate } from './commands/migrate.ts'
import { addNote } from './commands/note.ts'
import { addRetry } from './commands/retry.ts'
import { addRollCall } from './commands/rollcall.ts'
import { addServe } from './commands/serve.ts'
import { addSubmit } from './commands/submit.ts'
import { addVerify } from './commands/verify.ts'
import { addWatch } from './commands/watch.ts'
import { addWorker } from './commands/worker.ts'
import { DEFAULT_URL } from './connection.ts'
import { CliError, EXIT, SELF } from './failures.ts'
import { endWithReader, Terminal } from './terminal.ts'

const BEGIN = [
  ['demo', '200 tasks through failures and crashes, counted at the end'],
  ['dev', `a service at ${DEFAULT_URL}, data in .rollcall`],
  [`submit echo '{"hello":"world"}'`, 'a task for it'],
  ['worker --type echo --exec cat', 'a worker: any program is the handler'],
  ['list', 'what became of it'],
].map(([command, what]) => `  ${`${SELF} ${command}`.padEnd(48)} ${what}`)

const EPILOGUE = `
Begin here:
${BEGIN.join('\n')}

Exit codes:
  0    done
  1    the answer is no: refused, not found, failed
  2    the command line, a file or a setting cannot be used
  3    the service, or the database it needs, does not answer
  130  interrupted

Environment:
  ROLLCALL_URL  in place of --url
  ROLLCALL_KEY  in place of --key
  NO_COLOR      output without colours`

/** Runs one command line. Never rejects; the exit code is set. */
export async function run(argv: readonly string[]): Promise<void> {
  endWithReader()
  const program = buildProgram()
  if (argv.length <= 2) return program.outputHelp()
  try {
    await program.parseAsync(argv)
  } catch (error) {
    const json = program.opts().json === true || argv.includes('--json')
    process.exitCode = conclude(error, new Terminal(json), program.opts().url)
  }
}

/** The whole command line, not yet parsed. */
export function buildProgram(): Command {
  const program = new Command('rollcall')
    .description(
      'Tasks that always answer the roll call: submit them, work on them, ask what became of them.',
    )
    .option('--url <address>', `where the service answers (default: ROLLCALL_URL or ${DEFAULT_URL})`)
    .option('--key <key>', 'access key (default: ROLLCALL_KEY, which is better: all can read a command line)')
    .option('--json', 'output for programs: JSON on stdout, problems as JSON on stderr')
    .version(packageVersion(), '--version', 'print the version')
    .helpOption('-h, --help', 'print help')
    .addHelpText('after', EPILOGUE)
    .configureHelp({ showGlobalOptions: true })
    .showSuggestionAfterError()
    .exitOverride()
    // Printed by `conclude`, in the form that was asked for.
    .configureOutput({ writeErr: () => {} })
  for (const add of COMMANDS) add(program)
  return program
}

/** In the order of the help. */
const COMMANDS = [
  addDemo,
  addDev,
  addSubmit,
  addWorker,
  addGet,
  addWatch,
  addList,
  addHistory,
  addCancel,
  addRetry,
  addNote,
  addRollCall,
  addDeadLetters,
  addVerify,
  addKeys,
  addServe,
  addMigrate,
  addLog,
  addDemoWorker,
]

function conclude(error: unknown, terminal: Terminal, url = process.env.ROLLCALL_URL || DEFAULT_URL): number {
  if (!(error instanceof CommanderError)) return terminal.fail(error, url)
  // Help and version were asked for and printed.
  if (error.exitCode === 0) return EXIT.ok
  const message = error.code === 'commander.help' ? 'Say what to do.' : error.message.replace(/^error: /, '')
  return terminal.fail(new CliError('usage', `${message}\nSee ${SELF} --help.`, EXIT.usage), url)
}
