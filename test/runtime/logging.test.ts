import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const PROGRAM = fileURLToPath(new URL('log-lines-process.ts', import.meta.url))

for (const end of ['itself', 'exit', 'throw'])
  t.test(
    `every line of a burst is on stderr, whole and in order, where the process ends by ${end}`,
    async t => {
      const { stderr } = spawnSync(process.execPath, ['--import=tsx', PROGRAM, end], {
        encoding: 'utf8',
        timeout: 60_000,
      })
      const lines = stderr.split('\n').filter(line => line.startsWith('{'))
      t.equal(lines.length, 2_000)
      t.ok(lines.every((line, number) => JSON.parse(line).number === number))
      t.ok(lines.every(line => JSON.parse(line).worker === 'wörker ✓'))
    },
  )
