/** Ports of 127.0.0.1 for the servers that this program starts. */

import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:net'

const STEADY_LOWEST = 20_000
const STEADY_BEYOND = 32_000
const STEADY_ATTEMPTS = 50

/** A port that is free now; the system chooses. */
export async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const address = probe.address()
  probe.close()
  await once(probe, 'close')
  if (address === null || typeof address === 'string') throw new TypeError('a TCP server has a port')
  return address.port
}

/**
 * A port that is free now and that no connection is given as its own end while the server is down: below the range the
 * system takes those from. From inside that range a client that keeps trying to connect can reach itself.
 *
 * @throws when none of 50 tried is free
 */
export async function steadyPort(): Promise<number> {
  for (let attempt = 0; attempt < STEADY_ATTEMPTS; attempt++) {
    const port = randomInt(STEADY_LOWEST, STEADY_BEYOND)
    if (await isFree(port)) return port
  }
  throw new Error(`No free port was found between ${STEADY_LOWEST} and ${STEADY_BEYOND} of 127.0.0.1.`)
}

/** Whether a server could listen on the port now. */
export async function isFree(port: number): Promise<boolean> {
  const probe = createServer().listen(port, '127.0.0.1')
  try {
    await once(probe, 'listening')
    return true
  } catch {
    return false
  } finally {
    probe.close()
  }
}
