/** The SDK stays light: it takes only types from the service, and the client runs in a browser. */
import { readdir, readFile } from 'node:fs/promises'
import t from 'tap'

const FOLDER = new URL('../../src/sdk/', import.meta.url)

/** What a module of the SDK loads at once: [source, specifier] without type imports. */
async function loads(name: string): Promise<string[]> {
  const source = await readFile(new URL(name, FOLDER), 'utf8')
  const statements = source.matchAll(/^(?:import|export)\s+(?!type\s)[^'"]*?from\s+'([^']+)'/gm)
  return [...statements].map(([, specifier]) => specifier!)
}

t.test('nothing but types comes from outside the SDK', async t => {
  for (const name of await readdir(FOLDER))
    for (const specifier of await loads(name))
      t.ok(specifier.startsWith('./') || specifier.startsWith('node:'), `${name} loads ${specifier}`)
})

t.test('what the client loads at once has no part of Node in it', async t => {
  const seen = new Set(['client.ts'])
  for (const name of seen)
    for (const specifier of await loads(name)) {
      t.notMatch(specifier, /^node:/, `${name} loads ${specifier}`)
      seen.add(specifier.slice('./'.length))
    }
  t.ok(seen.has('http.ts'))
})
