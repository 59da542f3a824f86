/** The broker goes away, and ingest is killed: tasks are late, and end right. */
import t from 'tap'
import { brokerAway, ingestKilled } from './kafka-drills.ts'
import { Stage } from './kafka-stage.ts'

const stage = await Stage.open(t, ['api', 'projector', 'timers', 'dispatcher'], {
  outage: { maxOutstanding: 50, offerHoldMs: 5_000 },
  killed: { maxOutstanding: 200 },
})

if (stage) {
  t.test('ingest is killed in the middle of its batches, five times', t =>
    ingestKilled(t, stage, 'killed', 5),
  )

  t.test(
    'S13 the broker is away under load: submits are taken and durable, health says what is, all goes on',
    t => brokerAway(t, stage, 'outage', { end: 'stop', awayMs: 20_000 }),
  )
}
