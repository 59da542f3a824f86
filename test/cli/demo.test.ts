import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { FATES, planTasks } from '../../src/cli/demo/plan.ts'
import { imagePayloadSchema } from '../../src/cli/demo/render-image.ts'
import { eventually, isAlive, postgresPid, startCommand, temporaryFolder } from './fixture.ts'

t.test('the plan has every fate, is the same every time, and its payloads can be rendered', async t => {
  for (const count of [10, 24, 200]) {
    const plan = planTasks(count)
    t.equal(plan.length, count)
    t.same(plan, planTasks(count))
    t.same([...new Set(plan.map(({ fate }) => fate))].sort(), Object.keys(FATES).sort())
    for (const { payload } of plan) imagePayloadSchema.parse(payload)
  }
})

t.test('a small demo does real work, loses nothing, and ends with 0', async t => {
  const cwd = await temporaryFolder(t)
  const demo = startCommand(['demo', '--tasks', '24', '--workers', '2', '--json'], { cwd })
  t.teardown(() => demo.child.kill('SIGTERM'))
  const { code, stdout, stderr } = await demo.ended
  t.match({ code, stderr }, { code: 0, stderr: '' }, stdout)
  const report = JSON.parse(stdout)
  t.match(report, { ok: true, surprises: [], dataDir: null, pictures: { faults: [] } })
  const { rollCall } = report
  t.match(rollCall, { accepted: 24, succeeded: 20, failed: 2, cancelled: 2 })
  t.same([rollCall.missing, rollCall.doubled, rollCall.broken], [[], [], []])
  t.same(rollCall.failedBecause, { prompt_refused: 1, model_crashed: 1 })
  t.ok(rollCall.attemptsLostToLeases >= 1, 'a worker hung or was killed')
  t.ok(rollCall.succeededAfterRetry >= 3)
  t.equal(report.pictures.checked, 20)

  const pictures = (await readdir(join(cwd, report.pictures.folder))).filter(name => name.endsWith('.png'))
  t.equal(pictures.filter(name => /^[0-9a-f-]{36}\.png$/.test(name)).length, 20)
  const gallery = await readFile(join(cwd, report.pictures.gallery), 'utf8')
  t.equal(gallery.match(/<img /g)?.length, 20)
  t.comment(`${report.seconds} s`)
})

t.test('a demo that is interrupted leaves no process and no data', async t => {
  const cwd = await temporaryFolder(t)
  const demo = startCommand(['demo', '--tasks', '50'], { cwd, env: { TMPDIR: cwd } })
  t.teardown(() => demo.child.kill('SIGKILL'))
  await demo.until(/tasks are accepted/)
  const dataDir = await dataDirIn(cwd)
  const processes = [await postgresPid(dataDir), ...(await childrenOf(demo.pid))]
  demo.child.kill('SIGINT')
  t.match(await demo.ended, { code: 130 })
  t.notOk(processes.some(isAlive))
  t.notOk(existsSync(dataDir))
})

t.test('a demo that is killed takes its workers and its database along', async t => {
  const cwd = await temporaryFolder(t)
  const demo = startCommand(['demo', '--tasks', '50'], { cwd, env: { TMPDIR: cwd } })
  await demo.until(/tasks are accepted/)
  const processes = [await postgresPid(await dataDirIn(cwd)), ...(await childrenOf(demo.pid))]
  demo.child.kill('SIGKILL')
  await eventually('nothing of it runs', () => !processes.some(isAlive))
  t.pass('all have ended')
})

async function dataDirIn(folder: string): Promise<string> {
  const name = (await readdir(folder)).find(name => name.startsWith('rollcall-demo-'))
  if (name === undefined) throw new Error(`there is no data folder in ${folder}`)
  return join(folder, name)
}

/** Of a process, on Linux; elsewhere none are known. */
async function childrenOf(pid: number): Promise<number[]> {
  const text = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8').catch(() => '')
  return text
    .split(' ')
    .map(Number)
    .filter(child => child > 0)
}
