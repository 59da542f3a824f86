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
      t.match(loaded, /^(sdk\/|node:|broker\/(broker|topics)\.ts$)/, `${name} loads ${loaded}`)
})

t.test('what the client loads at once has no part of Node in it', async t => {
  const loaded = await allLoads('sdk/client.ts')
  t.ok(loaded.has('sdk/http.ts'))
  for (const one of loaded) t.match(one, /^sdk\/(?!kafka\/)/, one)
})

t.test('a worker loads a client for Kafka only where it is fed by Kafka', async t => {
  const loaded = await allLoads('sdk/worker.ts')
  t.ok(loaded.has('sdk/kafka/kafka-link.ts'))
  for (const one of loaded) t.match(one, /^(sdk\/|node:|broker\/(broker|topics)\.ts$)/, one)
  const link = await readFile(join(SRC, 'sdk/kafka/kafka-link.ts'), 'utf8')
  t.match(link, /await import\('\.\.\/\.\.\/broker\/kafka\/kafka-broker\.ts'\)/)
})
