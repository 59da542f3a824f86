import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { LogFile } from '../../src/cli/log-file.ts'
import { temporaryFolder } from './fixture.ts'

t.test('the log is turned over, and only two files are kept', async t => {
  const folder = await temporaryFolder(t)
  const file = new LogFile(folder, { maxBytes: 1_000 })
  for (let line = 0; line < 100; line++) {
    file.write(`{"level":30,"line":${line},"filler":"${'x'.repeat(60)}"}\n`)
    file.flush()
  }
  file.close()
  const path = join(folder, 'rollcall.log')
  t.ok(statSync(path).size < 1_200 && statSync(`${path}.1`).size < 1_200)
  t.match(readFileSync(path, 'utf8'), /"line":99/)
})

t.test('a log goes on where the one before has ended', async t => {
  const folder = await temporaryFolder(t)
  for (const line of ['first\n', 'second\n']) {
    const file = new LogFile(folder)
    file.write(line)
    file.close()
    file.write('after its end\n')
  }
  t.equal(readFileSync(join(folder, 'rollcall.log'), 'utf8'), 'first\nsecond\n')
})

t.test('warnings and errors are told as they come, until it is hushed', async t => {
  const told: string[] = []
  const file = new LogFile(await temporaryFolder(t), { onAttention: line => told.push(line) })
  t.teardown(() => file.close())
  for (const level of [20, 30, 40, 50, 60]) file.write(`{"level":${level},"msg":"x"}\n`)
  file.hush()
  file.write('{"level":60,"msg":"y"}\n')
  t.same(
    told.map(line => JSON.parse(line).level),
    [40, 50, 60],
  )
})

t.test('a folder that cannot be written is refused by name', async t => {
  t.throws(() => new LogFile('/dev/null/x'), {
    code: 'data_dir_unusable',
    exitCode: 2,
    message: /\/dev\/null\/x/,
  })
})
