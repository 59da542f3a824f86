/** Schemathesis over the document of a real service: requests made from the schemas, and every answer held to them. */
import { randomUUID } from 'node:crypto'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { idOfKey } from '../../src/api/keys.ts'
import { run } from '../../src/runtime/embedded-postgres-account.ts'
import { PostgresDeadLetters } from '../../src/workers/postgres/dead-letters.ts'
import { bearer, startGuarded } from '../api/access-fixture.ts'
import { TOKEN } from '../api/fixture.ts'
import { aRecord } from '../workers/worker-event-records.ts'
import { notRun, pythonEnvironment } from './python.ts'

const FOLDER = fileURLToPath(new URL('schemathesis/', import.meta.url))
const REQUIREMENTS = join(FOLDER, 'requirements.txt')

/** Streams have no end. */
const LEFT_OUT = ['streamTask', 'streamTasks']

export interface Examples {
  seed: number
  phases: 'coverage,fuzzing' | 'fuzzing'
  /** For each operation, in the phase of fuzzing. */
  perOperation: number
  /** There have to be so many in all. */
  atLeast: number
  timeoutMs: number
}

interface Report {
  complete: boolean
  test_cases: { generated: number; errored: number }
  errors: unknown[]
  valid_rates: Record<string, Record<string, { accepted: number; conflicts: number }>>
}

/** Runs the examples of a seed; the test fails with what Schemathesis says. */
export async function schemathesis(t: Test, { seed, phases, perOperation, atLeast, timeoutMs }: Examples) {
  const environment = await pythonEnvironment(REQUIREMENTS, [3, 10], async folder => ({
    make: `python3 -m venv ${folder}`,
    fill: `${folder}/bin/python -m pip install --quiet -r ${REQUIREMENTS}`,
  }))
  if ('lacking' in environment)
    return notRun(
      t,
      `Schemathesis. ${environment.lacking}`,
      process.env.ROLLCALL_TEST_SCHEMATHESIS_REQUIRED !== undefined,
    )
  const { url, secret, known } = await inhabited(t)
  const folder = await mkdtemp(join(tmpdir(), 'rollcall-schemathesis-'))
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  const report = join(folder, 'report.json')
  const { code, output } = await run(
    join(environment.folder, 'bin/python'),
    [
      ...['-m', 'schemathesis.cli', '--config-file', join(FOLDER, 'schemathesis.toml')],
      ...['run', `${url}/openapi.json`, '--header', `Authorization: ${bearer(secret).authorization}`],
      ...['--phases', phases, '--max-examples', String(perOperation), '--seed', String(seed)],
      ...['--continue-on-failure', '--request-timeout', '20', '--no-color', '--warnings', 'off'],
      ...['--report', 'json', '--report-json-path', report],
      ...LEFT_OUT.flatMap(id => ['--exclude-operation-id', id]),
    ],
    {
      timeoutMs,
      env: {
        ...process.env,
        PYTHONPATH: FOLDER,
        SCHEMATHESIS_HOOKS: 'hooks',
        ROLLCALL_KNOWN: JSON.stringify(known),
        HYPOTHESIS_STORAGE_DIRECTORY: folder,
      },
      cwd: folder,
    },
  )
  t.equal(code, 0, output)
  const { test_cases, complete, errors, valid_rates } = JSON.parse(await readFile(report, 'utf8')) as Report
  t.match(
    { complete, errors: errors.length, errored: test_cases.errored },
    { complete: true, errors: 0, errored: 0 },
  )
  t.ok(test_cases.generated >= atLeast, `${test_cases.generated} examples`)
  // A run that is refused everywhere would find nothing.
  for (const [operation, rates] of Object.entries(valid_rates))
    t.ok(
      Object.values(rates).some(({ accepted, conflicts }) => accepted + conflicts > 0),
      `${operation} takes some`,
    )
}

/** A service that asks for keys, with tasks in every status, letters, and a key for everything. */
async function inhabited(t: Test) {
  const { api, service, caller } = await startGuarded(t)
  const name = 'all-examples'
  const { secret } = await caller({ name })
  await new PostgresDeadLetters(service.pool).keep(
    Array.from({ length: 5 }, () => ({
      record: aRecord({ value: Buffer.from('{') }),
      fault: { code: 'invalid_json', message: 'It ends too early.', taskId: null },
    })),
  )
  const post = async <T>(path: string, body: object): Promise<T> =>
    (await api.post<T>(path, body, bearer(secret))).body
  const submit = async (type: string) => (await post<{ taskId: string }>('/v1/tasks', { type })).taskId
  const claim = { worker: 'w', types: ['running'], max: 100, leaseToken: TOKEN }
  const running = await Promise.all(Array.from({ length: 60 }, () => submit('running')))
  await post('/v1/workers/claim', { ...claim, claimId: randomUUID() })
  const [done, failed, again, cancelled, ...rest] = running
  const held = { attempt: 1, leaseToken: TOKEN }
  const error = { message: 'It broke.' }
  await post(`/v1/tasks/${done}/succeed`, { ...held, result: { file: 'a' } })
  await post(`/v1/tasks/${failed}/fail`, { ...held, error, retryable: false })
  await post(`/v1/tasks/${again}/fail`, { ...held, error, retryAfterMs: 86_400_000 })
  await post(`/v1/tasks/${cancelled}/cancel`, {})
  const waiting = await Promise.all(Array.from({ length: 5 }, () => submit('waiting')))
  const { letters } = (await api.get<{ letters: { letterId: string }[] }>('/v1/dead-letters', bearer(secret)))
    .body
  return {
    url: api.url,
    secret,
    known: {
      key: [name, idOfKey(secret)],
      leaseToken: TOKEN,
      running: rest,
      tasks: [done, failed, again, cancelled, ...waiting, ...rest.slice(0, 3)],
      letters: letters.map(({ letterId }) => letterId),
    },
  }
}
