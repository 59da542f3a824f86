/** Folders that several processes want and one of them makes. */

import { randomInt } from 'node:crypto'
import { access, mkdir, readdir, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { isSystemError } from '../embedded-postgres-error.ts'
import { processIdentity } from '../embedded-postgres-owner.ts'

const PAUSE_MS = [100, 400] as const
const underWay = new Map<string, Promise<void>>()

/**
 * Makes a folder that is either complete or not there: `make` fills another, which then takes the name. While one
 * process is at it the others wait, for at most `waitMs`; what a killed one left is removed. It is only politeness
 * that they wait: should two make it at once after all, the second finds it made.
 *
 * @throws what `make` throws, or an Error when the wait was in vain
 */
export function makeOnce(
  folder: string,
  make: (unfinished: string) => Promise<void>,
  waitMs: number,
): Promise<void> {
  let making = underWay.get(folder)
  if (!making) {
    making = makeInTurn(folder, make, waitMs).finally(() => underWay.delete(folder))
    underWay.set(folder, making)
  }
  return making
}

async function makeInTurn(
  folder: string,
  make: (unfinished: string) => Promise<void>,
  waitMs: number,
): Promise<void> {
  const deadline = performance.now() + waitMs
  const prefix = `${basename(folder)}.making.`
  const mine = join(dirname(folder), `${prefix}${process.pid}.${await processIdentity(process.pid)}`)
  while (!(await exists(folder))) {
    await mkdir(mine, { recursive: true })
    try {
      const other = await otherMaker(dirname(folder), prefix, basename(mine))
      if (other === undefined) await makeAs(mine, folder, make)
      else if (performance.now() > deadline)
        throw new Error(`Process ${other} has been making ${folder} for more than ${waitMs} ms.`)
    } finally {
      await rm(mine, { recursive: true, force: true })
    }
    // Two that began in the same instant have both given way: hence not the same pause for both.
    if (!(await exists(folder))) await delay(randomInt(...PAUSE_MS))
  }
}

async function makeAs(
  unfinished: string,
  folder: string,
  make: (at: string) => Promise<void>,
): Promise<void> {
  await make(unfinished)
  await rename(unfinished, folder).catch(error => {
    if (!isSystemError(error, 'EEXIST', 'ENOTEMPTY')) throw error // another process was faster
  })
}

async function otherMaker(parent: string, prefix: string, mine: string): Promise<number | undefined> {
  for (const name of await readdir(parent)) {
    if (!name.startsWith(prefix) || name === mine) continue
    const [pid, identity] = name.slice(prefix.length).split('.')
    if ((await processIdentity(Number(pid))) === identity) return Number(pid)
    await rm(join(parent, name), { recursive: true, force: true })
  }
  return undefined
}

/** Whether there is a file or folder of this name. */
export function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  )
}
