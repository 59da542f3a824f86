/** The SDK stays light: it takes only types from the service, and the client runs in a browser. */
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const SRC = fileURLToPath(new URL('../../src/', import.meta.url))

/** What a module loads at once, without type imports: modules of ours from src on, packages by their names. */
async function loads(path: string): Promise<string[]> {
  const source = await readFile(join(SRC, path), 'utf8')
  const statements = source.matchAll(/^(?:import|export)\s+(?!type\s)(?:[^'"]*?from\s+)?'([^']+)'/gm)
  return [...statements].map(([, specifier]) =>
    specifier!.startsWith('.') ? join(path, '..', specifier!) : specifier!,
  )
}

/** Everything that comes along with a module at once. */
async function allLoads(path: string): Promise<Set<string>> {
  const seen = new Set([path])
  for (const one of seen) if (one.endsWith('.ts')) for (const next of await loads(one)) seen.add(next)
  return seen
}

t.test('nothing but types comes from outside the SDK, besides the port to the broker', async t => {
  const files = (await readdir(join(SRC, 'sdk'), { recursive: true })).filter(name => name.endsWith('.ts'))
  t.ok(files.includes('kafka/kafka-link.ts'))
  for (const name of files)
    for (const loaded of await loads(join('sdk', name)))
      t.match(
        loaded,
        /^(sdk\/|node:|eventsource-parser$|broker\/(broker|topics)\.ts$)/,
        `${name} loads ${loaded}`,
      )
})

t.test('what a client loads in a browser has no part of Node in it, now or later', async t => {
  const loaded = await allLoads('sdk/browser-client.ts')
  t.ok(loaded.has('sdk/http.ts'))
  t.notOk(loaded.has('sdk/node-transport.ts'))
  for (const one of loaded) {
    t.match(one, /^(sdk\/(?!kafka\/)|eventsource-parser$)/, one)
    if (one.startsWith('sdk/')) t.notMatch(await readFile(join(SRC, one), 'utf8'), /\bimport\(/, one)
  }
})

t.test('both clients have the same exports, and the package leads to them', async t => {
  const [node, browser] = await Promise.all(
    ['client', 'browser-client'].map(name => import(`../../src/sdk/${name}.ts`)),
  )
  t.strictSame(Object.keys(browser).sort(), Object.keys(node).sort())
  const { exports } = JSON.parse(await readFile(join(SRC, '../package.json'), 'utf8'))
  t.strictSame(exports['./client'], {
    types: './dist/sdk/client.d.ts',
    node: './dist/sdk/client.js',
    default: './dist/sdk/browser-client.js',
  })
})

t.test('a worker loads a client for Kafka only where it is fed by Kafka', async t => {
  const loaded = await allLoads('sdk/worker.ts')
  t.ok(loaded.has('sdk/kafka/kafka-link.ts'))
  for (const one of loaded) t.match(one, /^(sdk\/|node:|broker\/(broker|topics)\.ts$)/, one)
  const link = await readFile(join(SRC, 'sdk/kafka/kafka-link.ts'), 'utf8')
  t.match(link, /await import\('\.\.\/\.\.\/broker\/kafka\/kafka-broker\.ts'\)/)
})
