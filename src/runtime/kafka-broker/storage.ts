/** The folder of a broker: its data, formatted by Kafka's own tool once and completely, and its settings. */

import { randomBytes } from 'node:crypto'
import { mkdir, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { exists } from './make-once.ts'
import { formatStorage, type Program } from './process.ts'
import { brokerProperties, type Place } from './properties.ts'

export const SETTINGS_FILE = 'broker.properties'
const FORMAT_FILE = 'format.properties'
const DATA = 'data'
const UNFINISHED = 'data.formatting'

/** Makes what is missing and writes the settings anew. @throws KafkaBrokerError `start_failed` */
export async function prepareFolder(
  folder: string,
  program: Program,
  ports: Omit<Place, 'logDir'>,
): Promise<void> {
  await mkdir(folder, { recursive: true })
  if (!(await exists(join(folder, DATA)))) {
    await rm(join(folder, UNFINISHED), { recursive: true, force: true })
    await writeFile(join(folder, FORMAT_FILE), brokerProperties({ ...ports, logDir: UNFINISHED }))
    await formatStorage(program, { folder, settingsFile: FORMAT_FILE, clusterId: newClusterId() })
    await rm(join(folder, FORMAT_FILE))
    await rename(join(folder, UNFINISHED), join(folder, DATA))
  }
  await writeFile(join(folder, SETTINGS_FILE), brokerProperties({ ...ports, logDir: DATA }))
}

/** In the form of Kafka's ids. One that begins with a dash would be taken for an option. */
function newClusterId(): string {
  for (;;) {
    const id = randomBytes(16).toString('base64url')
    if (!id.startsWith('-')) return id
  }
}
