/** JSON from the command line, a file or standard input, kept exactly or refused. */
import { open } from 'node:fs/promises'
import { usageError } from './failures.ts'

/** The service takes 256 KiB; what is far beyond is not read to its end. */
const MAX_BYTES = 1024 * 1024

/** The JSON that `text` is, or that `@file` or `-` lead to. */
export async function readPayload(text: string): Promise<unknown> {
  if (text === '-') return parseExactly(await readAll(process.stdin, 'standard input'), 'standard input')
  if (!text.startsWith('@')) return parseExactly(Buffer.from(text), 'the payload')
  const path = text.slice(1)
  return parseExactly(await readFile(path), path)
}

async function readFile(path: string): Promise<Buffer> {
  try {
    const file = await open(path)
    try {
      return await readAll(file.createReadStream(), path)
    } finally {
      await file.close()
    }
  } catch (cause) {
    if (cause instanceof Error && 'syscall' in cause)
      throw usageError(`The payload cannot be read from ${path}: ${cause.message}.`, 'usage', { cause })
    throw cause
  }
}

async function readAll(stream: AsyncIterable<Buffer | string>, name: string): Promise<Buffer> {
  const parts: Buffer[] = []
  let bytes = 0
  for await (const part of stream) {
    parts.push(Buffer.from(part))
    bytes += part.length
    if (bytes > MAX_BYTES)
      throw usageError(
        `The payload of ${name} is larger than ${MAX_BYTES} bytes; store it elsewhere and send its address.`,
      )
  }
  return Buffer.concat(parts)
}

/** By the service's own parser: what it would refuse is refused here, before JSON.parse has changed a number. */
async function parseExactly(body: Buffer, name: string): Promise<unknown> {
  const { parseJsonBody } = await import('../api/json-body.ts')
  try {
    return parseJsonBody(body)
  } catch (cause) {
    const { code, message } = cause as Error & { code?: string }
    const why = message.replace(/^The body/, 'It').replace(/\.?$/, '.')
    const hint =
      code === 'invalid_json' && name === 'the payload' ? ` A text needs its quotes: '"hello"'.` : ''
    throw usageError(`${name[0]!.toUpperCase()}${name.slice(1)} cannot be sent. ${why}${hint}`, 'usage', {
      cause,
    })
  }
}
