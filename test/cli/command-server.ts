/**
 * Runs command lines one after the other in one process, for tests of many short ones: starting a process for
 * each takes twenty times as long as what it does.
 */
import { run } from '../../src/cli/program.ts'

interface Asked {
  id: number
  args: string[]
  env: Record<string, string>
}

const captured = (stream: NodeJS.WriteStream) => {
  const write = stream.write
  let text = ''
  stream.write = (part: string | Uint8Array) => {
    text += part
    return true
  }
  return () => {
    stream.write = write
    return text
  }
}

async function answer({ id, args, env }: Asked): Promise<void> {
  Object.assign(process.env, env)
  process.exitCode = 0
  const stdout = captured(process.stdout)
  const stderr = captured(process.stderr)
  await run(['node', 'rollcall', ...args])
  const code = process.exitCode
  process.send?.({ id, code, stdout: stdout(), stderr: stderr() })
  for (const name of Object.keys(env)) delete process.env[name]
}

let last = Promise.resolve()
process.on('message', (asked: Asked) => {
  last = last.then(() => answer(asked))
})
process.on('disconnect', () => process.exit())
