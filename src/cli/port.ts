/** Whether an address can be listened on, asked before anything is started that would have to be stopped again. */
import { once } from 'node:events'
import { createServer } from 'node:net'
import { CliError, EXIT } from './failures.ts'

/** @throws CliError saying which option to change */
export async function assertPortFree(host: string, port: number | null, option = '--port'): Promise<void> {
  if (!port) return
  const probe = createServer().listen({ host, port })
  try {
    await once(probe, 'listening')
  } catch (error) {
    throw listenError(error, host, port, option)
  } finally {
    probe.close()
  }
}

/** The reason why an address cannot be listened on; other errors as they are. */
export function listenError(error: unknown, host: string, port: number | null, option = '--port'): unknown {
  switch ((error as NodeJS.ErrnoException).code) {
    case 'EADDRINUSE':
      return refused(
        'port_in_use',
        `Port ${port} of ${host} is in use by another program (another rollcall dev?). ` +
          `Stop that, or choose another port with ${option}.`,
      )
    case 'EACCES':
      return refused(
        'port_not_allowed',
        `Port ${port} may not be used by this user. Choose one above 1023 with ${option}.`,
      )
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return refused('host_unknown', `${host} is not an address of this machine. Choose another with --host.`)
    default:
      return error
  }
}

const refused = (code: string, message: string) => new CliError(code, message, EXIT.usage)
