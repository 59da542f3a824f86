/** docs/client.md and the client of the README against a real service: what they show is run as it stands. */
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import t, { type Test } from 'tap'
import { temporaryFolder } from '../support/postgres.ts'
import { startFixture } from './fixture.ts'

const ROOT = fileURLToPath(new URL('../../', import.meta.url))

/** The TypeScript of a page, or of a part of it, as one program. */
async function programOf(page: string, after = ''): Promise<string> {
  const text = await readFile(join(ROOT, page), 'utf8')
  const part = text.slice(text.indexOf(after))
  const blocks = [...part.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map(([, block]) => block!)
  return blocks.join('\n')
}

/** Runs a program that says where the service is as the documents do. */
async function run(t: Test, program: string, url: string): Promise<void> {
  const folder = await temporaryFolder()
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  const file = join(folder, 'program.mts')
  const client = pathToFileURL(join(ROOT, 'src/sdk/client.ts')).href
  await writeFile(
    file,
    program.replaceAll("'rollcall/client'", `'${client}'`).replaceAll('http://127.0.0.1:8080', url),
  )
  await import(file)
}

for (const [page, after] of [
  ['README.md', '### A client'],
  ['docs/client.md', ''],
] as const)
  t.test(`what ${page} shows of the client works as it stands`, async t => {
    const { url, worker } = await startFixture(t)
    const printed: unknown[][] = []
    t.intercept(console, 'log', { value: (...values: unknown[]) => printed.push(values) })
    worker({ 'report.export': () => ({ rows: 42 }) })
    const program = await programOf(page, after)
    t.match(program, 'createClient')
    await run(t, program, url)
    t.match(printed[0]?.at(-1), { rows: 42 })
  })
