/** The demo with its tasks handed out through a real Kafka broker. All 200 of them: test/long/demo-kafka.test.ts. */
import { readdir } from 'node:fs/promises'
import t from 'tap'
import { canStartKafka } from '../support/kafka.ts'
import { startCommand, temporaryFolder } from './fixture.ts'

t.test('a small demo through Kafka loses nothing, doubles nothing, and says which way it went', async t => {
  if (!(await canStartKafka(t))) return
  const cwd = await temporaryFolder(t)
  const args = ['demo', '--tasks', '30', '--workers', '2', '--kafka']
  const demo = startCommand(args, { cwd, env: { TMPDIR: cwd } })
  t.teardown(() => demo.child.kill('SIGTERM'))
  const { code, stdout, stderr } = await demo.ended
  t.match({ code, stderr }, { code: 0, stderr: '' }, stdout)
  t.match(stdout, /a database, a Kafka broker and the service start/)
  t.match(stdout, /2 workers are started, each a process of its own, fed by Kafka/)
  t.match(stdout, /is killed \(SIGKILL\)/)
  const count = (name: string) => Number(new RegExp(`^  ${name} +(\\d+)`, 'm').exec(stdout)?.[1])
  const counts = ['accepted', 'succeeded', 'failed', 'cancelled', 'pictures fetched'].map(count)
  t.same(counts, [30, 26, 2, 2, 26])
  const faults = ['missing', 'doubled', 'broken chains', 'not as planned', 'pictures at fault'].map(count)
  t.same(faults, [0, 0, 0, 0, 0])
  // Each picture has three steps and its outcome.
  t.ok(count('reported through Kafka') >= 4 * 26)
  const left = (await readdir(cwd)).filter(name => name.startsWith('rollcall-demo-'))
  t.same(left, [], 'its data is gone')
})
