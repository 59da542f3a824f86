/**
 * Java's archive of the classes that a broker loads: with it one starts in 1.9 s instead of 4.4 s (2 cores, Java 17).
 * Made once per version of Kafka and build of Java, by a broker that is started to be stopped again.
 */

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { BaseLogger } from 'pino'
import { steadyPort } from '../port.ts'
import type { Jars } from './jars.ts'
import type { Java } from './java.ts'
import { exists, makeOnce } from './make-once.ts'
import { launchBroker } from './process.ts'
import { untilReady } from './ready.ts'
import { prepareFolder, SETTINGS_FILE } from './storage.ts'

const FILE = 'classes.jsa'
const START_MS = 60_000
/** It writes 50 MB while it stops: 5 s. */
const STOP_MS = 60_000

/** The archive, or undefined where none can be made: a broker starts without, too. */
export async function classArchive(java: Java, jars: Jars, logger?: BaseLogger): Promise<string | undefined> {
  const folder = join(jars.folder, `classes-${java.build}`)
  const archive = join(folder, FILE)
  try {
    await makeOnce(folder, unfinished => make(join(unfinished, FILE), java, jars), START_MS + STOP_MS)
  } catch (error) {
    logger?.warn({ err: error }, 'no archive of the classes of Kafka could be made; its start takes longer')
  }
  return (await exists(archive)) ? archive : undefined
}

/** Whatever hinders it, an empty folder stays and says that it has been tried. */
async function make(archive: string, { command }: Java, { classPath }: Jars): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'rollcall-kafka-'))
  try {
    const program = { java: command, classPath }
    const port = await steadyPort()
    await prepareFolder(folder, program, { port, controllerPort: await steadyPort() })
    const moreFlags = [`-XX:ArchiveClassesAtExit=${archive}`]
    const broker = launchBroker({ program, folder, settingsFile: SETTINGS_FILE, moreFlags })
    await untilReady(broker, `127.0.0.1:${port}`, START_MS)
    await broker.stop(STOP_MS)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}
