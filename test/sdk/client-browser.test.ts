/** The client in a browser: bundled as an application has it, on a page of the origin that passes the API on. */
import { readFile } from 'node:fs/promises'
import * as http from 'node:http'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import type { BrowserContext, Page } from 'playwright-core'
import t, { type Test } from 'tap'
import type { TaskView } from '../../src/sdk/client.ts'
import { startChromium } from '../support/chromium.ts'
import { close, gate, listen, startFixture, until } from './fixture.ts'

const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const NOBODY = '00000000-0000-4000-8000-000000000000'

/** The little of esbuild that is needed here; tsx brings it along. */
interface Esbuild {
  build(options: object): Promise<{ outputFiles: { text: string }[]; metafile: { inputs: object } }>
}

/** The page's script with all that it imports, `rollcall/client` as the package's map says for a browser. */
async function bundle() {
  const require = createRequire(import.meta.url)
  const { build } = createRequire(require.resolve('tsx/package.json'))('esbuild') as Esbuild
  const { exports } = JSON.parse(await readFile(`${ROOT}package.json`, 'utf8'))
  const built: string = exports['./client'].default
  const { outputFiles, metafile } = await build({
    entryPoints: [`${ROOT}test/sdk/browser-page.js`],
    bundle: true,
    format: 'esm',
    platform: 'browser',
    write: false,
    metafile: true,
    logLevel: 'silent',
    // From the sources, so that the test is not one of an older build.
    alias: { 'rollcall/client': ROOT + built.replace('./dist/', 'src/').replace(/\.js$/, '.ts') },
  })
  return { script: outputFiles[0]!.text, inputs: Object.keys(metafile.inputs) }
}

/** Serves the page and passes what begins with /v1 on to the service: one origin, as behind a proxy. */
async function servePage(t: Test, script: string, serviceUrl: string) {
  let streams = 0
  const seen: string[] = []
  const server = http.createServer((incoming, outgoing) => {
    const path = incoming.url!
    if (!path.startsWith('/v1')) {
      const [type, body] = path.startsWith('/page.js')
        ? ['text/javascript', script]
        : ['text/html', '<!doctype html><title>page</title><script type="module" src="/page.js"></script>']
      outgoing.writeHead(200, { 'content-type': type }).end(body)
      return
    }
    seen.push(`${incoming.method} ${path}`)
    const { method, headers } = incoming
    const passed = http.request(new URL(path, serviceUrl), { method, headers }, answer => {
      if (answer.headers['content-type'] === 'text/event-stream') {
        streams++
        outgoing.on('close', () => streams--)
      }
      answer.pipe(outgoing.writeHead(answer.statusCode!, answer.headers))
      answer.on('error', () => outgoing.destroy())
    })
    passed.on('error', () => outgoing.destroy())
    outgoing.on('close', () => passed.destroy())
    incoming.pipe(passed)
  })
  const url = await listen(server, 0)
  t.teardown(() => close(server))
  return { url, seen, openStreams: () => streams }
}

/** The page, open, with its script there; what goes wrong in it fails the test. */
async function openPage(t: Test, browser: BrowserContext, url: string): Promise<Page> {
  const page = await browser.newPage()
  page.on('pageerror', error => t.fail(`the page threw: ${error.message}`))
  await page.goto(url)
  await page.waitForFunction('globalThis.page')
  return page
}

t.test('a page submits, follows, waits and is told what is wrong, with nothing of Node', async t => {
  const browser = await startChromium(t)
  if (!browser) return
  const { script, inputs } = await bundle()
  t.notOk(inputs.some(input => /node-transport|node:/.test(input)))
  t.ok(inputs.some(input => /eventsource-parser/.test(input)))
  const { client, url, worker } = await startFixture(t)
  const site = await servePage(t, script, url)
  const page = await openPage(t, browser, site.url)
  const call = <T>(name: string, ...args: unknown[]) =>
    page.evaluate(`globalThis.page.${name}(...${JSON.stringify(args)})`) as Promise<T>

  const seen = gate()
  worker({
    painted: async (task, { progress }) => {
      progress(0.5)
      if (task.payload === 'slow')
        await Promise.race([seen.opened, new Promise(end => setTimeout(end, 9_000))])
      return { painted: task.payload }
    },
  })
  const following = call<{ taskId: string; told: unknown[][]; done: TaskView }>('follow', {
    type: 'painted',
    payload: 'slow',
  })
  await page.waitForFunction('globalThis.lastTold?.task.progress === 0.5', null, { timeout: 15_000 })
  seen.open()
  const { told, done } = await following
  t.match(told.at(-1), ['task', 'TaskSucceeded', 'SUCCESS'])
  t.match(told[0], ['task', null])
  t.match(done, { status: 'SUCCESS', result: { painted: 'slow' } })

  t.match(await call<TaskView>('waitFor', { type: 'painted', payload: 'quick' }), {
    status: 'SUCCESS',
    result: { painted: 'quick' },
  })
  t.strictSame(await call('failure', NOBODY), { ours: true, code: 'not_found', status: 404 })
  const waiting = await client.submit({ type: 'unpainted', delayMs: 600_000 })
  t.equal(await call('unchanged', waiting.taskId), null)
  t.equal(await call('leave', waiting.taskId), 'PENDING')
  await until('the stream that was left is closed', () => site.openStreams() === 0)
})
