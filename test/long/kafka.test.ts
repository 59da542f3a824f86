/** Nightly: `npm run test:long`. What test/integration does a few times, often and for longer. */
import t from 'tap'
import {
  brokerAway,
  dispatcherKilledAfterSend,
  dispatcherKilledBeforeSend,
  ingestKilled,
} from '../integration/kafka-drills.ts'
import { Stage } from '../integration/kafka-stage.ts'

const INGEST_KILLS = 50
const DISPATCHER_KILLS = 5
const OUTAGES = 3

t.setTimeout(3_600_000)
const dispatched = { offerHoldMs: 3_000, partitions: 1 }
const kills = Array.from(
  { length: DISPATCHER_KILLS },
  (_, index) => [`before-${index}`, `after-${index}`] as const,
)
const outages = Array.from({ length: OUTAGES }, (_, index) => `outage-${index}`)
const stage = await Stage.open(t, ['api', 'projector', 'timers'], {
  ...Object.fromEntries(outages.map(type => [type, { maxOutstanding: 50, offerHoldMs: 5_000 }])),
  killed: { maxOutstanding: 200 },
  ...Object.fromEntries(kills.flat().map(type => [type, dispatched])),
})

if (stage) {
  for (const [before, after] of kills)
    t.test(`a dispatcher is killed: ${before}, ${after}`, { timeout: 300_000 }, async t => {
      await dispatcherKilledBeforeSend(t, stage, before)
      await dispatcherKilledAfterSend(t, stage, after)
    })

  t.test(`ingest is killed ${INGEST_KILLS} times`, { timeout: 1_800_000 }, async t => {
    const dispatcher = await stage.serve(['dispatcher'])
    await ingestKilled(t, stage, 'killed', INGEST_KILLS)
    await dispatcher.stop()
  })

  for (const outage of outages)
    t.test(`the broker is killed and away for 20 s under load: ${outage}`, { timeout: 300_000 }, async t => {
      const dispatcher = await stage.serve(['dispatcher'])
      await brokerAway(t, stage, outage, { end: 'kill', awayMs: 20_000 })
      await dispatcher.stop()
    })
}
