import { readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { testDatabase } from '../support/postgres.ts'
import { dumpSchema } from '../support/schema-dump.ts'

t.test('the schema of the read model is the one that was reviewed', async t => {
  const { url } = await testDatabase(t)
  // Names are written in full only for schemas that are not searched, and a role's own schema is.
  const plain = new URL(url)
  plain.searchParams.set('options', '-c search_path=pg_catalog')
  const dump = await dumpSchema(plain.href, 'rollcall')
  const file = fileURLToPath(new URL('../fixtures/schema-read-model.txt', import.meta.url))
  // Written anew on purpose only, and then read as a change like any other.
  if (process.env.TAP_SNAPSHOT === '1') await writeFile(file, dump)
  t.equal(dump, await readFile(file, 'utf8'))
})
