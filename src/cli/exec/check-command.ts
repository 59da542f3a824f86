/** Whether a command can be run at all, asked before any task is claimed: a typing error must not fail them all. */
import { execFile } from 'node:child_process'

const TIMEOUT_MS = 10_000
/** A first word of these characters is a program's name or path and nothing that the shell computes. */
const PLAIN_WORD = /^[A-Za-z0-9_@%+:,./-]+$/

/** Null where it can be run, otherwise why not. */
export async function commandFault(command: string): Promise<string | null> {
  if (command.trim() === '') return 'it is empty'
  const syntax = await shell(['-n', '-c', command])
  if (syntax.code !== 0) return `the shell cannot read it: ${syntax.stderr.trim()}`
  const [word = ''] = command.trim().split(/[\s;&|<>()]/, 1)
  if (!PLAIN_WORD.test(word)) return null
  // An assignment before the program's name (`A=1 program`) has a "=", which is no plain word.
  const found = await shell(['-c', 'command -v -- "$1"', 'sh', word])
  return found.code === 0 ? null : `there is no program ${word}, or it may not be executed`
}

function shell(args: string[]): Promise<{ code: number; stderr: string }> {
  return new Promise(resolve => {
    execFile('/bin/sh', args, { timeout: TIMEOUT_MS }, (error, _stdout, stderr) => {
      const code = error === null ? 0 : typeof error.code === 'number' ? error.code : 1
      resolve({ code, stderr: stderr || (error?.message ?? '') })
    })
  })
}
