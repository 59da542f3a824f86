/** The demo's pictures: a folder of its own, a small server for it, and the proof that every picture is there. */
import { once } from 'node:events'
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import type { Task } from '../../domain/task.ts'

export interface Pictures {
  folder: string
  /** Serves `<task id>.png`. */
  url: string
  close(): void
}

const NAME = /^\/([0-9a-f-]{36}\.png)$/
const RUN = /^run-(\d+)$/
const PNG_MAGIC = Buffer.from('89504e470d0a1a0a', 'hex')
const CHECKS_AT_ONCE = 8
const CHECK_TIMEOUT_MS = 10_000

/** A folder for this run below `parent`; those of earlier runs that have ended are removed. */
export async function makePicturesFolder(parent: string): Promise<string> {
  await mkdir(parent, { recursive: true })
  for (const name of await readdir(parent)) {
    const pid = RUN.exec(name)?.[1]
    if (pid !== undefined && !isAlive(Number(pid)))
      await rm(join(parent, name), { recursive: true, force: true })
  }
  const folder = join(parent, `run-${process.pid}`)
  await rm(folder, { recursive: true, force: true })
  await mkdir(folder)
  return folder
}

function isAlive(pid: number): boolean {
  try {
    return pid !== process.pid && process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** Serves the folder on a free port of this machine. */
export async function servePictures(folder: string): Promise<Pictures> {
  const server = createServer(async (request, response) => {
    const name = NAME.exec(request.url ?? '')?.[1]
    const png = name === undefined ? null : await readFile(join(folder, name)).catch(() => null)
    if (png) response.writeHead(200, { 'content-type': 'image/png', 'content-length': png.length }).end(png)
    else response.writeHead(404).end()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return {
    folder,
    url: `http://127.0.0.1:${port}`,
    close: () => {
      server.close()
      server.closeAllConnections()
    },
  }
}

/** Fetches the picture of every succeeded task. @returns what is wrong, one line each */
export async function checkPictures(tasks: Iterable<Task>): Promise<{ checked: number; faults: string[] }> {
  const succeeded = [...tasks].filter(task => task.status === 'SUCCESS')
  const faults: string[] = []
  const left = [...succeeded]
  const checkNext = async (): Promise<void> => {
    for (let task = left.pop(); task; task = left.pop()) {
      const fault = await pictureFault(task.resultUrl, task.payload as { width: number; height: number })
      if (fault !== null) faults.push(`${task.taskId}: ${fault}`)
    }
  }
  await Promise.all(Array.from({ length: CHECKS_AT_ONCE }, checkNext))
  return { checked: succeeded.length, faults }
}

async function pictureFault(
  url: string | null,
  { width, height }: { width: number; height: number },
): Promise<string | null> {
  if (url === null) return 'it has no resultUrl'
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(CHECK_TIMEOUT_MS) })
    if (response.status !== 200) return `${url} answers ${response.status}`
    const png = Buffer.from(await response.arrayBuffer())
    if (!png.subarray(0, 8).equals(PNG_MAGIC)) return `${url} is not a PNG`
    // Width and height stand at fixed places of the header, behind its length and name.
    const [wide, high] = [png.readUInt32BE(16), png.readUInt32BE(20)]
    return wide === width && high === height
      ? null
      : `${url} is ${wide} x ${high} and not ${width} x ${height}`
  } catch (error) {
    return `${url} cannot be fetched: ${(error as Error).message}`
  }
}

/** A page with all pictures, for a look at what the workers have done. @returns its path */
export async function writeGallery(folder: string, tasks: Iterable<Task>): Promise<string> {
  const figures = [...tasks].flatMap(task => {
    if (task.status !== 'SUCCESS') return []
    const { prompt } = task.payload as { prompt: string }
    return [`<img src="${task.taskId}.png" width="256" height="256" title="${escapeHtml(prompt)}" alt="">`]
  })
  const page = `<!doctype html><meta charset="utf-8"><title>Rollcall demo</title>
<style>body{background:#111;margin:1rem;display:flex;flex-wrap:wrap;gap:.5rem}</style>
${figures.join('\n')}
`
  const path = join(folder, 'index.html')
  await writeFile(path, page)
  return path
}

const escapeHtml = (text: string): string =>
  text.replace(/[&<>"]/g, character => `&#${character.charCodeAt(0)};`)
