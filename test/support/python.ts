/**
 * Programs in Python for tests: a virtual environment in the user's cache for each list of requirements, made once. Where
 * Python or its packages cannot be had a test is skipped and says so; where it is required it fails.
 */
import { createHash } from 'node:crypto'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { run } from '../../src/runtime/embedded-postgres-account.ts'
import { makeOnce } from '../../src/runtime/kafka-broker/make-once.ts'

const INSTALL_MS = 120_000

export interface PythonCommands {
  /** Makes an environment in `.venv`. */
  make: string
  /** Fills it, by `.venv/bin/python -m pip install …`. */
  fill: string
}

/**
 * The folder of a virtual environment, or why there is none.
 *
 * @param requirements the file that the commands install; another content is another environment
 * @param commands gives them when they are needed, for a folder in place of `.venv`
 */
export async function pythonEnvironment(
  requirements: string,
  oldest: readonly [major: number, minor: number],
  commands: (folder: string) => Promise<PythonCommands>,
): Promise<{ folder: string } | { lacking: string }> {
  const which = [
    '-c',
    `import sys; print(sys.version_info >= (${oldest.join(', ')}), sys.version, sys.executable)`,
  ]
  const { output } = await run('python3', which, { env: process.env }).catch(() => ({ output: '' }))
  if (!output.startsWith('True')) return { lacking: `There is no python3 from ${oldest.join('.')} on.` }
  const content = await readFile(requirements)
  const name = createHash('sha256').update(content).update(output).digest('hex').slice(0, 12)
  const cache = process.env.XDG_CACHE_HOME || join(homedir(), '.cache')
  const folder = join(cache, 'rollcall', `python-${name}`)
  try {
    await makeOnce(folder, async unfinished => install(unfinished, await commands(unfinished)), INSTALL_MS)
    return { folder }
  } catch (error) {
    return { lacking: (error as Error).message }
  }
}

async function install(folder: string, { make, fill }: PythonCommands): Promise<void> {
  // Debian keeps what makes environments in a package of its own.
  if (await succeeds("python3 -c 'import ensurepip'")) {
    await sh(make)
    return sh(fill)
  }
  const packages = join(folder, 'packages')
  await sh(`${fill.replace(join(folder, 'bin/python'), 'python3')} --target ${packages}`)
  await mkdir(join(folder, 'bin'))
  const path = 'PYTHONPATH="$(dirname "$0")/../packages"'
  await writeFile(join(folder, 'bin/python'), `#!/bin/sh\n${path} exec python3 "$@"\n`, { mode: 0o755 })
}

async function sh(command: string): Promise<void> {
  const { code, output } = await run('/bin/sh', ['-c', command], { env: process.env, timeoutMs: INSTALL_MS })
  if (code !== 0) throw new Error(`${command}: ${output.trim() || `ended with ${code}`}`)
}

const succeeds = (command: string): Promise<boolean> =>
  sh(command).then(
    () => true,
    () => false,
  )

/**
 * Ends a test that cannot run here, and says so.
 *
 * @throws Error where the environment says that it has to run
 */
export function notRun(t: Test, what: string, required: boolean): void {
  const message = `NOT RUN: ${what} Install Python 3 with venv (Debian: apt-get install python3-venv).`
  if (required) throw new Error(message)
  process.stderr.write(`${message}\n`)
  t.plan(0, message)
}
