/** Rules about the sources that no compiler holds. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const root = fileURLToPath(new URL('..', import.meta.url))
const read = (path: string): string => readFileSync(join(root, path), 'utf8')

function filesUnder(folder: string, endings: readonly string[]): string[] {
  return readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile() && endings.some(ending => entry.name.endsWith(ending)))
    .map(entry => relative(root, join(entry.parentPath, entry.name)))
    .sort()
}

/** What each folder of src may import from the others; `type` imports of shapes are free for the SDK. */
const ALLOWED: Record<string, readonly string[]> = {
  domain: [],
  broker: [],
  eventlog: ['domain'],
  engine: ['eventlog', 'domain'],
  projections: ['engine', 'eventlog', 'domain'],
  workers: ['broker', 'projections', 'engine', 'eventlog', 'domain'],
  api: ['workers', 'projections', 'engine', 'eventlog', 'domain'],
  sdk: ['broker'],
  cli: ['sdk', 'runtime', 'api', 'workers', 'broker', 'projections', 'engine', 'eventlog', 'domain'],
  runtime: ['api', 'workers', 'broker', 'projections', 'engine', 'eventlog', 'domain'],
}

interface Import {
  file: string
  from: string
  to: string
  typeOnly: boolean
}

function importsOf(file: string): Import[] {
  const statement = /^(import|export)\s+(type\s+)?[^'"\n]*?(?:\{[^}]*\}[^'"\n]*?)?from\s+'(\.[^']+)'/gm
  return [...read(file).matchAll(statement)].map(match => {
    const target = relative(join(root, 'src'), resolve(root, dirname(file), match[3]!))
    return { file, from: file.split('/')[1]!, to: target.split('/')[0]!, typeOnly: match[2] !== undefined }
  })
}

t.test('imports between the folders of src point one way', async t => {
  const imports = filesUnder('src', ['.ts']).flatMap(importsOf)
  t.ok(imports.length > 100, 'the sources were read')
  const wrong = imports.filter(
    one =>
      one.from !== one.to && !ALLOWED[one.from]?.includes(one.to) && !(one.from === 'sdk' && one.typeOnly),
  )
  t.same(
    wrong.map(one => `${one.file} imports ${one.to}`),
    [],
  )
})

t.test('the domain is pure: no clock, randomness, ids, environment or input and output', async t => {
  const banned =
    /Date\.now|new Date\(\)|Math\.random|randomUUID|process\.|performance\.|setTimeout|from '(pg|kafkajs|fastify|pino|node:[^']*)'/
  for (const file of filesUnder('src/domain', ['.ts'])) t.notMatch(read(file), banned, file)
})

t.test('only runtime and cli read the environment', async t => {
  const readers = filesUnder('src', ['.ts']).filter(file => /process\.env/.test(read(file)))
  t.same(
    readers.filter(file => !/^src\/(runtime|cli)\//.test(file)),
    [],
  )
})

t.test('no check is switched off and no test is skipped or singled out without its reason', async t => {
  for (const file of filesUnder('src', ['.ts']))
    t.notMatch(read(file), /as any\b|@ts-ignore|@ts-nocheck|\bTODO\b|\bFIXME\b/, file)
  for (const file of filesUnder('test', ['.ts']).filter(file => file !== 'test/tidy.test.ts'))
    t.notMatch(read(file), /\bt\.only\(|\bt\.todo\(/, file)
})

t.test('every npm script and every file that the documents name exists', async t => {
  const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> }
  const documents = [
    ...['README.md', 'CHANGELOG.md', 'bench/README.md', 'examples/README.md'],
    ...filesUnder('docs', ['.md']),
  ]
  for (const document of documents) {
    const text = read(document)
    for (const [, script] of text.matchAll(/\bnpm run (?:--silent )?([a-zA-Z0-9:_][a-zA-Z0-9:_-]*)/g))
      t.ok(scripts[script!], `${document}: npm run ${script}`)
    for (const [, link] of text.matchAll(/\]\((?!https?:|#)([^)#]+)[^)]*\)/g))
      t.ok(existsSync(resolve(root, dirname(document), link!)), `${document}: ${link}`)
  }
})

t.test('every command that the README shows is one of the program', async t => {
  const { Command } = await import('commander')
  const { buildProgram } = await import('../src/cli/program.ts')
  const program = buildProgram()
  t.ok(program instanceof Command)
  const known = program.commands.map(command => command.name())
  for (const document of ['README.md', 'examples/README.md', ...filesUnder('docs', ['.md'])])
    for (const [, name] of read(document).matchAll(/(?:^|`)(?:npx )?rollcall ([a-z]+(?:-[a-z]+)*)\b/gm))
      t.ok(known.includes(name!), `${document}: rollcall ${name}`)
})
