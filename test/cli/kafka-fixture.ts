/** What the tests of commands with a Kafka broker of their own share. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'

/** Of the broker that runs, or ran last, on a data folder. */
export const brokerPid = async (dataDir: string): Promise<number> =>
  JSON.parse(await readFile(join(dataDir, 'kafka', 'broker.json'), 'utf8')).pid
