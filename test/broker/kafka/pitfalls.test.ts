/** The client's traps, K1 to K21: each has its line in the decision, and the tests it names. */
import { readdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { RETRY } from '../../../src/broker/kafka/options.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const read = (path: string): string => readFileSync(join(root, path), 'utf8')
const sources = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
  .filter(file => file.endsWith('.ts'))
  .map(file => `src/${file}`)

t.test('each trap has its remedy, and the tests that it names', async t => {
  const rows = [
    ...read('docs/adr/0014-kafkajs-behind-a-port.md').matchAll(/^\| (K\d+) \|(.+)\|(.+)\|(.+)\|$/gm),
  ]
  t.same(
    rows.map(([, id]) => id),
    Array.from({ length: 21 }, (_, i) => `K${i + 1}`),
  )
  for (const [, id, trap, remedy, tests] of rows) {
    t.ok(trap!.trim() && remedy!.trim(), `${id} is described`)
    const files = [...tests!.matchAll(/`([\w-]+)`/g)].map(match => match[1])
    t.ok(files.length > 0, `${id} names a test`)
    for (const file of files)
      t.match(
        read(`test/broker/kafka/${file}.test.ts`),
        new RegExp(`t\\.test\\(\\s*'[K\\d ]*\\b${id}\\b[K\\d ]*:`),
        `${id}: ${file}`,
      )
  }
})

t.test('K16: the client is told in full how to try again, wherever it is made', async t => {
  const defaults: object = createRequire(import.meta.url)('kafkajs/src/retry/defaults.js')
  t.same(Object.keys(RETRY).sort(), Object.keys(defaults).sort())
  const made = sources
    .filter(file => file.startsWith('src/broker/'))
    .flatMap(file =>
      [...read(file).matchAll(/(?:new Kafka|kafka\.(?:admin|producer|consumer))\(/g)].map(match => ({
        file,
        text: read(file).slice(match.index, match.index + 1_500),
      })),
    )
  t.equal(made.length, 5)
  for (const { file, text } of made) t.match(text, /\bretry: (RETRY|\{\s*\.\.\.RETRY)\b/, file)
})

t.test('K21: nothing rests on the client but the adapter, and the broker that tests are run on', async t => {
  const users = sources.filter(file => /from 'kafkajs'|'kafkajs\//.test(read(file)))
  const allowed = ['src/broker/kafka/', 'src/runtime/kafka-broker/']
  t.ok(users.length > 0)
  t.same(
    users.filter(file => !allowed.some(folder => file.startsWith(folder))),
    [],
  )
})
