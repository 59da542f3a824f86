/** The Dockerfile says what it should; and what runs in the image runs without what the image leaves out. */
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import t from 'tap'
import { startCommand } from '../cli/fixture.ts'
import { testServer } from '../support/postgres.ts'
import { readRepositoryFile, repositoryFile } from './compose-file.ts'

const { version, engines, scripts } = JSON.parse(readRepositoryFile('package.json')) as {
  version: string
  engines: { node: string }
  scripts: Record<string, string>
}

interface Instruction {
  name: string
  text: string
}
const instructions: Instruction[] = readRepositoryFile('Dockerfile')
  .replace(/^#.*\n/gm, '')
  .replace(/\\\n\s*/g, ' ')
  .split('\n')
  .filter(line => line !== '')
  .map(line => {
    const [name = '', ...rest] = line.split(' ')
    return { name, text: rest.join(' ') }
  })
const all = (name: string): string[] =>
  instructions.filter(one => one.name === name).map(({ text }) => text.trim())
/** What comes after the last FROM: the image itself. */
const image = instructions.slice(instructions.findLastIndex(({ name }) => name === 'FROM'))
const last = (name: string): string | undefined => image.findLast(one => one.name === name)?.text

t.test('it starts from one pinned Node that package.json allows', async t => {
  const [, base = '', major, minor] =
    /^NODE_IMAGE=(node:(\d+)\.(\d+)\.\d+-[a-z]+-slim)$/.exec(all('ARG')[0]!) ?? []
  t.ok(base, 'the version is whole')
  const [, needMajor, needMinor] = /^>=(\d+)\.(\d+)$/.exec(engines.node) ?? []
  t.ok(Number(major) > Number(needMajor) || (major === needMajor && Number(minor) >= Number(needMinor)))
  for (const from of all('FROM')) t.match(from, /^\$\{NODE_IMAGE\}( AS [a-z]+)?$/)
})

t.test('it does not run as root, and its files are not the process’s own', async t => {
  t.equal(last('USER'), 'node')
  for (const { name, text } of image) if (name === 'COPY') t.notMatch(text, /--chown/)
})

t.test('signals reach node: no shell stands between', async t => {
  const [node, ...options] = JSON.parse(last('ENTRYPOINT')!) as string[]
  const script = options.pop()
  t.equal(node, 'node')
  t.equal(script, 'dist/cli/main.js')
  t.ok(existsSync(repositoryFile('src/cli/main.ts')))
  t.same(JSON.parse(last('CMD')!), ['serve'])
  t.equal(
    readRepositoryFile('src/cli/main.ts').split('\n')[0],
    `#!/usr/bin/env -S node ${options.join(' ')}`,
    'with the options of the program’s first line',
  )
})

t.test('what it copies exists, and .dockerignore lets it through and nothing else', async t => {
  const stages = all('FROM').flatMap(from => / AS (.*)$/.exec(from)?.[1] ?? [])
  const sources: string[] = []
  for (const copy of all('COPY')) {
    const [, stage, paths = ''] = /^(?:--from=(\S+) )?(.*) \S+$/.exec(copy) ?? []
    if (stage !== undefined) t.ok(stages.includes(stage), copy)
    else sources.push(...paths.split(' '))
  }
  for (const source of sources) t.ok(existsSync(repositoryFile(source)), source)
  const [first, ...admitted] = readRepositoryFile('.dockerignore')
    .split('\n')
    .filter(line => line !== '' && !line.startsWith('#'))
  t.equal(first, '*')
  t.same(admitted.sort(), [...new Set(sources)].map(source => `!${source}`).sort())
})

t.test('its npm commands exist, keep to the lock file and run no scripts of packages', async t => {
  const runs = all('RUN')
  t.ok(runs.length >= 3)
  for (const run of runs) {
    const [, script] = /^npm run ([a-z:]+)$/.exec(run) ?? []
    if (script !== undefined) t.ok(scripts[script], run)
    else t.match(run, /^npm ci .*--ignore-scripts/)
  }
})

t.test('its labels say its version, and it holds no secrets', async t => {
  t.match(last('LABEL'), `org.opencontainers.image.version="${version}"`)
  t.match(last('LABEL'), 'org.opencontainers.image.licenses="Apache-2.0"')
  for (const { name, text } of instructions)
    if (name === 'ENV' || name === 'ARG') t.notMatch(text, /PASS|SECRET|TOKEN|KEY/i)
})

t.test(
  'migrate and serve need nothing that the image leaves out, and take the password from PGPASSWORD',
  async t => {
    const { url } = await testServer(t)
    const address = new URL(url)
    const PGPASSWORD = decodeURIComponent(address.password)
    address.password = ''
    const env = {
      ROLLCALL_DATABASE_URL: address.href,
      PGPASSWORD,
      NODE_OPTIONS: `--import=${import.meta.resolve('tsx')} --import=${repositoryFile('test/deploy/refuse-optional.ts')}`,
    }
    t.ok(PGPASSWORD, 'the server asks for one')
    t.match(await startCommand(['migrate'], { env }).ended, { code: 0, stderr: '' })
    const serve = startCommand(['serve', '--json', '--port', '0', '--log-level', 'warn'], { env })
    t.teardown(() => serve.child.kill('SIGKILL'))
    const { url: service } = JSON.parse((await serve.until(/^\{.*\}$/m))[0])
    t.equal((await fetch(`${service}/readyz`)).status, 200)
    serve.child.kill('SIGTERM')
    t.match(await serve.ended, { code: 0 })

    const refused = spawnSync(
      process.execPath,
      ['--input-type=module', '--eval', `import '@napi-rs/canvas'`],
      {
        env: { ...process.env, NODE_OPTIONS: env.NODE_OPTIONS },
        encoding: 'utf8',
      },
    )
    t.match(refused, { status: 1, stderr: /the image has no @napi-rs\/canvas/ }, 'they were left out indeed')
  },
)
