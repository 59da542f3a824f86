/** The whole demo through Kafka: 200 tasks, three workers, two of them killed, some hung. */
import t from 'tap'
import { startCommand, temporaryFolder } from '../cli/fixture.ts'
import { canStartKafka } from '../support/kafka.ts'

const RUNS = 5

for (let run = 1; run <= RUNS; run++)
  t.test(`200 tasks through Kafka: none missing, none doubled (${run})`, async t => {
    if (!(await canStartKafka(t))) return
    const cwd = await temporaryFolder(t)
    const demo = startCommand(['demo', '--kafka', '--json'], { cwd, env: { TMPDIR: cwd } })
    t.teardown(() => demo.child.kill('SIGTERM'))
    const { code, stdout, stderr } = await demo.ended
    t.match({ code, stderr }, { code: 0, stderr: '' }, stdout)
    const { rollCall, seconds, ...report } = JSON.parse(stdout)
    t.match(report, { ok: true, surprises: [], pictures: { faults: [] } })
    t.match(rollCall, { accepted: 200, succeeded: 172, failed: 14, cancelled: 14 })
    t.same([rollCall.missing, rollCall.doubled, rollCall.broken], [[], [], []])
    t.comment(`${seconds} s`)
  })
