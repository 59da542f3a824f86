/** A broker that outlived the process that started it (both that and its guard were killed) is stopped by the next. */

import { readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { BaseLogger } from 'pino'
import { z } from 'zod'
import { processIdentity } from '../embedded-postgres-owner.ts'
import { KafkaBrokerError } from './error.ts'

const FILE = 'broker.json'
const POLL_MS = 50
const STOP_STEPS = [
  { signal: 'SIGTERM', waitMs: 10_000 },
  { signal: 'SIGKILL', waitMs: 3_000 },
] as const

const aProcess = z.object({ pid: z.int().positive(), identity: z.string() })

/** Notes who runs on the folder. */
export async function noteBroker(folder: string, pid: number): Promise<void> {
  const identity = await processIdentity(pid)
  // It may have ended already: then there is nothing to note.
  if (identity === undefined) return
  // Never half of it, whoever is killed and whoever reads meanwhile.
  const unfinished = join(folder, `${FILE}.unfinished`)
  await writeFile(unfinished, JSON.stringify({ pid, identity }))
  await rename(unfinished, join(folder, FILE))
}

/** Only to be called by the owner of the folder. @throws KafkaBrokerError `stop_failed` */
export async function stopLeftover(folder: string, logger?: BaseLogger): Promise<void> {
  const text = await readFile(join(folder, FILE), 'utf8').catch(() => '')
  const found = aProcess.safeParse(parsed(text))
  if (!found.success) return // none was ever here
  const broker = found.data
  if (!(await lives(broker))) return
  logger?.warn({ pid: broker.pid }, 'stopping a Kafka broker that outlived its owner')
  for (const { signal, waitMs } of STOP_STEPS) {
    try {
      process.kill(broker.pid, signal)
    } catch {} // gone already, or not ours to end: the wait will tell
    for (const end = performance.now() + waitMs; performance.now() < end; await delay(POLL_MS))
      if (!(await lives(broker))) return
  }
  const message = `A Kafka broker from before still runs on ${folder} and cannot be stopped. End process ${broker.pid}.`
  throw new KafkaBrokerError('stop_failed', message)
}

async function lives({ pid, identity }: z.infer<typeof aProcess>): Promise<boolean> {
  return (await processIdentity(pid)) === identity
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
