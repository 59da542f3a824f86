/** Starts `worker-process.ts`, for the tests that send it signals. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { until } from './fixture.ts'

interface Told {
  started?: string
  stopped?: Record<string, number>
}

/** A worker process, and what it told. */
export function startWorkerProcess(t: Test, args: readonly string[]) {
  const child: ChildProcess = fork(
    fileURLToPath(new URL('./worker-process.ts', import.meta.url)),
    [...args],
    {
      execArgv: ['--import=tsx'],
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    },
  )
  t.teardown(() => child.kill('SIGKILL'))
  const told: Told[] = []
  child.on('message', message => told.push(message as Told))
  const exited = once(child, 'exit') as Promise<[number | null, string | null]>
  const started = (taskId: string) =>
    until('the process started it', () => told.some(one => one.started === taskId))
  return { child, told, exited, started }
}
