/**
 * The double as a process of its own:
 *
 *     node --import=tsx test/support/eventstoredb-double/main.ts [--port P]
 *
 * It writes one line when it is ready and takes commands (commands.ts) on its input, one a line. It ends on SIGTERM
 * and when its input ends, so that it does not outlive whoever started it.
 */
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { obey } from './commands.ts'
import { EventStoreDBDouble } from './double.ts'

const { values } = parseArgs({ options: { port: { type: 'string', default: '0' } } })
const port = Number(values.port)
if (!Number.isInteger(port) || port < 0 || port > 65_535)
  throw new RangeError(`--port ${values.port} is no port: give a number up to 65535, or none for a free one`)

const double = await EventStoreDBDouble.start({ port })
const say = (line: unknown): boolean => process.stdout.write(`${JSON.stringify(line)}\n`)
const end = async (): Promise<never> => {
  await double.stop()
  process.exit(0)
}
process.once('SIGTERM', end)
process.once('SIGINT', end)

// One after the other, so that the answers stand in the order of the commands.
let before: Promise<unknown> = Promise.resolve()
const lines = createInterface({ input: process.stdin })
lines.on('line', line => {
  before = before.then(async () => say(await obey(double, line)))
})
lines.on('close', () => before.then(end))
say({ ready: true, port: double.port })
