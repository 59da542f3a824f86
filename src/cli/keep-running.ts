/** Brings a server of ours back when it ends by itself: killed, or out of memory. */
import type { Logger } from 'pino'
import { CliError, EXIT } from './failures.ts'

export interface KeepRunning {
  /** As a sentence names it: `the database`. */
  name: string
  /** Of the failure when it cannot be brought back. */
  code: string
  /** Of the process that runs now. */
  exited(): Promise<{ code: number | null; signal: string | null }>
  restart(): Promise<void>
  /** Whether its end was asked for. */
  stopping(): boolean
  logger: Logger
}

/** A server that ends again and again has a reason that another start does not mend. */
const RESTARTS = { max: 3, withinMs: 5 * 60 * 1_000 }

/** @returns what went wrong when it cannot be kept running, null when it was stopped */
export async function keepRunning(server: KeepRunning): Promise<CliError | null> {
  const restarts: number[] = []
  for (;;) {
    const exit = await server.exited()
    if (server.stopping()) return null
    const how = exit.signal ?? `exit code ${exit.code}`
    const now = performance.now()
    restarts.push(now)
    const recent = restarts.filter(at => now - at < RESTARTS.withinMs).length
    if (recent > RESTARTS.max)
      return failure(
        server,
        `it ended ${recent} times in ${RESTARTS.withinMs / 60_000} minutes, last by ${how}`,
      )
    server.logger.error({ how, restart: recent }, `${server.name} ended by itself and is started again`)
    try {
      await server.restart()
    } catch (error) {
      if (server.stopping()) return null
      return failure(server, `it ended by ${how} and does not start again: ${(error as Error).message}`)
    }
  }
}

function failure({ name, code }: KeepRunning, why: string): CliError {
  const subject = name[0]!.toUpperCase() + name.slice(1)
  return new CliError(code, `${subject} cannot be kept running: ${why}. The log says more.`, EXIT.no)
}
