/**
 * A real browser for tests: Debian's Chromium, or the one that `ROLLCALL_TEST_CHROMIUM` names. Where there is none, root
 * installs it with apt-get (about a minute, said on stderr). Where that cannot be, a test that asks is skipped, and says so
 * on stderr; with `ROLLCALL_TEST_BROWSER_REQUIRED` it fails.
 */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { promisify } from 'node:util'
import { type BrowserContext, chromium } from 'playwright-core'
import type { Test } from 'tap'
import { temporaryFolder } from './postgres.ts'

const PLACES = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
/** A page of ours is all it is to load. */
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]
const START_MS = 60_000
const INSTALL_MS = 240_000
let told = false

/** A browser with a profile of its own, closed when the test ends; null where the test is skipped and has to return. */
export async function startChromium(t: Test): Promise<BrowserContext | null> {
  const executablePath = found() ?? (await install())
  if (executablePath === null) return skip(t)
  const profile = await temporaryFolder()
  t.teardown(() => rm(profile, { recursive: true, force: true }))
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath,
    args: FLAGS,
    headless: true,
    timeout: START_MS,
  })
  t.teardown(() => browser.close())
  return browser
}

const found = (): string | null =>
  process.env.ROLLCALL_TEST_CHROMIUM || (PLACES.find(place => existsSync(place)) ?? null)

/** Where it was installed to; null where it was not. */
async function install(): Promise<string | null> {
  if (process.getuid?.() !== 0 || !existsSync('/usr/bin/apt-get')) return null
  process.stderr.write('installing chromium with apt-get, for the tests in a browser\n')
  const apt = (...args: string[]) =>
    promisify(execFile)('apt-get', ['-o', `DPkg::Lock::Timeout=${INSTALL_MS / 1_000}`, '-y', '-q', ...args], {
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
      timeout: INSTALL_MS,
      maxBuffer: 64 * 1024 * 1024,
    })
  try {
    await apt('update')
    await apt('install', '--no-install-recommends', 'chromium')
  } catch (error) {
    process.stderr.write(`chromium was not installed: ${(error as Error).message}\n`)
  }
  return found()
}

function skip(t: Test): null {
  const message =
    'NOT RUN: tests in a browser. There is no Chromium. Install it (Debian: apt-get install chromium), or set ' +
    'ROLLCALL_TEST_CHROMIUM to the path of one.'
  if (process.env.ROLLCALL_TEST_BROWSER_REQUIRED) throw new Error(message)
  if (!told) process.stderr.write(`${message}\n`)
  told = true
  t.plan(0, message)
  return null
}
