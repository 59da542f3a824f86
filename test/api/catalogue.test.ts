import { readFileSync } from 'node:fs'
import t from 'tap'
import { CATALOGUE, Problem, type ProblemCode } from '../../src/api/problems.ts'
import { apiDocument } from '../support/answer-schemas.ts'

const page = readFileSync(new URL('../../docs/errors.md', import.meta.url), 'utf8')
const rows = [...page.matchAll(/^\| (\d+) \| `(\w+)` \| (.+?) \| (.+?) \|$/gm)].map(
  ([, status, code, title, remedy]) => ({
    status: Number(status),
    code: code!,
    title: title!,
    remedy: remedy!,
  }),
)

t.test('docs/errors.md has every code with its status and meaning, and no other, in order', async t => {
  const expected = Object.entries(CATALOGUE)
    .map(([code, { status, title }]) => ({ status, code, title }))
    .sort((one, other) => one.status - other.status || (one.code < other.code ? -1 : 1))
  t.strictSame(
    rows.map(({ status, code, title }) => ({ status, code, title })),
    expected,
  )
  for (const { code, remedy } of rows) t.match(remedy, /\w.*\.$/, `${code} says what to do`)
})

t.test('a problem carries its code, and its detail or else its title', async t => {
  for (const code of Object.keys(CATALOGUE) as ProblemCode[]) {
    const { status, title } = CATALOGUE[code]
    const type = `urn:rollcall:problem:${code}`
    t.strictSame(new Problem(code).body(), { type, title, status, code, detail: title })
    const errors = [{ path: 'a', message: 'b' }]
    t.strictSame(new Problem(code, 'why', errors).body(), {
      type,
      title,
      status,
      code,
      detail: 'why',
      errors,
    })
  }
})

t.test('every code is answered by a route that says so, or elsewhere', async t => {
  const { components } = await apiDocument()
  const answered = new Set(
    Object.entries(components.schemas)
      .filter(([name]) => /Problem\d*$/.test(name))
      .flatMap(([, schema]) => (schema as { properties: { code: { enum: string[] } } }).properties.code.enum),
  )
  const ELSEWHERE = ['route_not_found', 'method_not_allowed']
  t.strictSame([...answered, ...ELSEWHERE].sort(), Object.keys(CATALOGUE).sort())
})
