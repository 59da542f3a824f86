/** The client of a command: which service it asks, and as whom. */
import { userInfo } from 'node:os'
import type { Command } from 'commander'
import { type Client, createClient } from '../sdk/client.ts'
import { usageError } from './failures.ts'
import { Terminal } from './terminal.ts'

export const DEFAULT_URL = 'http://127.0.0.1:8080'

interface GlobalOptions {
  url?: string
  key?: string
  json?: boolean
}

export interface Connected {
  client: Client
  terminal: Terminal
  url: string
}

/** What a command needs to talk to the service it was pointed at. */
export function connect(command: Command): Connected {
  const url = urlOf(command)
  const options = { url, key: keyOf(command), headers: originHeaders() }
  return { client: createClient(options), terminal: terminalOf(command), url }
}

export const terminalOf = (command: Command): Terminal =>
  new Terminal(command.optsWithGlobals<GlobalOptions>().json === true)

/** From `--url`, else the environment, else where `rollcall dev` listens. */
export function urlOf(command: Command): string {
  const given = command.optsWithGlobals<GlobalOptions>().url
  const url = given ?? (process.env.ROLLCALL_URL || DEFAULT_URL)
  const from = given === undefined ? 'ROLLCALL_URL' : '--url'
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    throw usageError(`${from} must be an address such as ${DEFAULT_URL}, not ${JSON.stringify(url)}.`)
  return url
}

/** The access key: `--key`, else the environment, where not every user of the machine can read it. */
export function keyOf(command: Command): string | undefined {
  const given = command.optsWithGlobals<GlobalOptions>().key
  const key = given ?? (process.env.ROLLCALL_KEY || undefined)
  // What was given is not repeated: it may be a key with a slip in it.
  if (key !== undefined && !/^[\x21-\x7e]+$/.test(key))
    throw usageError(
      `${given === undefined ? 'ROLLCALL_KEY' : '--key'} is no access key: it has spaces or other signs.`,
    )
  return key
}

/** What the history says of who asked: the user of this machine, at a command line. */
export const originHeaders = (): Record<string, string> => ({
  'rollcall-actor': userName(),
  'rollcall-source': 'command_line',
})

function userName(): string {
  // Headers carry visible ASCII; in a container the user may have no name at all.
  const name = systemUser()
    .replace(/[^\x20-\x7e]/g, '?')
    .trim()
  return name.slice(0, 128) || 'unknown'
}

function systemUser(): string {
  try {
    return userInfo().username
  } catch {
    return process.env.USER || `uid ${process.getuid?.() ?? 'unknown'}`
  }
}
