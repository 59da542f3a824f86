/** test/scenarios.md and the titles of the tests say the same. */
import { readdirSync, readFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const root = fileURLToPath(new URL('../..', import.meta.url))
const read = (path: string): string => readFileSync(join(root, path), 'utf8')

/** Every scenario there is. */
const IDS = [
  ...['S01', 'S02', 'S03', 'S05', 'S09', 'S10', 'S13', 'S14', 'S16', 'S17'],
  ...['S19', 'S20', 'S21', 'S23', 'S26', 'S28', 'S31'],
  ...['S32', 'S37', 'S38'],
  ...['S40', 'S41', 'S43', 'S45', 'S48', 'S49', 'S53'],
  ...['S54', 'S56', 'S57'],
  ...['S61', 'S63', 'S65', 'S68'],
  ...['S69', 'S70', 'S72', 'S74'],
]

const rows = [...read('test/scenarios.md').matchAll(/^\| (S\d+) \| (.+?) \|(.*?)\|(.*?)\|$/gm)].map(
  ([, id, situation, tests, waits]) => ({
    id: id!,
    situation: situation!,
    files: [...tests!.matchAll(/`([^`]+)`/g)].map(match => match[1]!),
    waits: waits!.trim(),
  }),
)

interface Title {
  file: string
  title: string
  /** The ids that it begins with. */
  ids: string[]
}

const titles: Title[] = readdirSync(join(root, 'test'), { recursive: true, withFileTypes: true })
  .filter(entry => entry.isFile() && entry.name.endsWith('.ts'))
  .map(entry => relative(root, join(entry.parentPath, entry.name)))
  .flatMap(file =>
    [...read(file).matchAll(/\.test\(\s*(['"`])((?:\\.|(?!\1).)*)\1/g)].map(([, , title]) => ({
      file,
      title: title!,
      ids: /^((?:S\d\d )*)/.exec(title!)![1]!.split(' ').filter(Boolean),
    })),
  )

t.test('the page has every scenario once, in order, and no other', async t => {
  t.equal(IDS.length, 38)
  t.strictSame(
    rows.map(({ id }) => id),
    IDS,
  )
  for (const { id, situation } of rows) t.match(situation, /\w/, id)
})

t.test('a scenario has tests in every file that the page names, or waits for an issue', async t => {
  t.ok(titles.length > 500, `${titles.length} titles were read`)
  for (const { id, files, waits } of rows) {
    t.match(waits, /^$|^(rest: )?issue 6\b/, `${id} waits for an issue, or for nothing`)
    const waitsWhole = /^issue/.test(waits)
    t.equal(files.length === 0, waitsWhole, `${id} has tests exactly if it does not wait as a whole`)
    for (const file of files)
      t.ok(
        titles.some(one => one.file === file && one.ids.includes(id)),
        `${file} has a test whose title begins with ${id}`,
      )
  }
})

t.test('every title that begins with an id is on the page', async t => {
  for (const { file, title, ids } of titles)
    for (const id of ids)
      t.ok(
        rows.some(row => row.id === id && row.files.includes(file)),
        `${id} names ${file}: ${title}`,
      )
})

t.test('an id stands at the beginning of a title', async t => {
  const elsewhere = titles.filter(({ title }) => /\bS\d\d\b/.test(title.replace(/^(?:S\d\d )+/, '')))
  t.strictSame(
    elsewhere.map(({ file, title }) => `${file}: ${title}`),
    [],
  )
})
