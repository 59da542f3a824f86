/**
 * The worker in Python of `examples`, by the commands of its README. Its client of Kafka is kept in the user's cache, in
 * a virtual environment of its own. Where Python or its packages cannot be had the test is skipped and says so; with
 * `ROLLCALL_TEST_KAFKA_REQUIRED` it fails.
 */
import { spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import pino from 'pino'
import t, { type Test } from 'tap'
import { fileConfigSchema, serviceConfigSchema } from '../../src/runtime/config.ts'
import { startService } from '../../src/runtime/service.ts'
import { createClient } from '../../src/sdk/client.ts'
import { temporaryFolder } from '../cli/fixture.ts'
import { kafkaBroker } from '../support/kafka.ts'
import { testDatabase } from '../support/postgres.ts'
import { notRun, type PythonCommands, pythonEnvironment } from '../support/python.ts'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const TASKS = 20
const TYPE = 'image.generate'
const PNG_MAGIC = '89504e470d0a1a0a'

/** The README's commands that begin so. */
async function documented(beginning: string): Promise<string[]> {
  const readme = await readFile(join(ROOT, 'examples/README.md'), 'utf8')
  const blocks = [...readme.matchAll(/```sh\n([\s\S]*?)```/g)].flatMap(([, block]) =>
    block!.trim().split('\n'),
  )
  return blocks.filter(line => line.startsWith(beginning))
}

const placed = (command: string, environment: string): string =>
  command.replaceAll('.venv', environment).replaceAll('examples/', join(ROOT, 'examples/'))

const REQUIREMENTS = join(ROOT, 'examples/python/requirements.txt')

/** The README's commands for its environment, in a folder of the test. */
async function environmentCommands(folder: string): Promise<PythonCommands> {
  const [make, fill, ...others] = [
    ...(await documented('python3 -m venv')),
    ...(await documented('.venv/bin/python -m pip')),
  ]
  if (!make || !fill || others.length > 0) throw new Error('The README has other commands than expected.')
  return { make: placed(make, folder), fill: placed(fill, folder) }
}

async function serve(t: Test, kafkaBrokers: readonly string[]): Promise<string> {
  const { url: databaseUrl } = await testDatabase(t)
  const service = await startService({
    ...serviceConfigSchema.parse({ databaseUrl, port: 0, kafkaBrokers }),
    file: fileConfigSchema.parse({ types: { [TYPE]: { kafka: {}, retry: { maxAttempts: 1 } } } }),
    logger: pino({ level: 'silent' }),
    requireDurable: false,
  })
  t.teardown(() => service.stop())
  return service.url!
}

t.test(
  `a worker in Python does ${TASKS} tasks that come through Kafka, and fails what it cannot do`,
  async t => {
    const kafka = await kafkaBroker(t)
    if (!kafka) return
    const environment = await pythonEnvironment(REQUIREMENTS, [3, 8], environmentCommands)
    if ('lacking' in environment)
      return notRun(
        t,
        `the example in Python. ${environment.lacking}`,
        process.env.ROLLCALL_TEST_KAFKA_REQUIRED !== undefined,
      )
    const url = await serve(t, kafka.brokers)

    const [command] = await documented('.venv/bin/python examples/python/worker.py')
    t.match(command, / 127\.0\.0\.1:9092 my-python$/)
    const cwd = await temporaryFolder(t)
    const started = placed(command!, environment.folder).replace('127.0.0.1:9092', kafka.brokers.join(','))
    const worker = spawn('/bin/sh', ['-c', `exec ${started}`], { cwd, stdio: ['ignore', 'ignore', 'pipe'] })
    let said = ''
    worker.stderr.on('data', part => {
      said += part
    })
    t.teardown(() => worker.kill('SIGKILL'))

    const client = createClient({ url })
    const picture = (index: number) => ({ prompt: `picture ${index}`, width: 16, height: 8 })
    const payloads: object[] = [
      ...Array.from({ length: TASKS }, (_, index) => picture(index)),
      { of: 'no picture' },
    ]
    const results = await client.submitBatch(payloads.map(payload => ({ type: TYPE, payload })))
    const ids = results.map(result => (result.kind === 'refused' ? '' : result.taskId))
    const ended = await Promise.all(ids.map(id => client.waitFor(id, { timeoutMs: 120_000 })))
    const failed = ended.pop()
    for (const task of ended) {
      t.match(task, { status: 'SUCCESS', worker: 'my-python', attempt: 1 }, said)
      const png = await readFile((task.result as { file: string }).file)
      t.equal(png.subarray(0, 8).toString('hex'), PNG_MAGIC)
      t.same([png.readUInt32BE(16), png.readUInt32BE(20)], [16, 8])
    }
    t.match(failed, { status: 'FAILED', errorCode: 'TypeError', errorMessage: /unexpected keyword/ })
    t.equal(said, '', 'it has nothing to complain about')
  },
)
