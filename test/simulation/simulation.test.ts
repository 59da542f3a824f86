import t from 'tap'
import { shrink, storyOf } from './shrink.ts'
import { simulate } from './simulation.ts'

const SEEDS = 2_000

t.test(`${SEEDS} stories go right`, async t => {
  let events = 0
  for (let seed = 1; seed <= SEEDS; seed++) {
    const report = await simulate({ seed })
    events += report.events
    if (report.violations.length === 0) continue
    const shortest = await shrink({ seed })
    t.fail(`seed ${seed} goes wrong`, { violations: report.violations, story: storyOf(shortest) })
    return
  }
  t.ok(events > 10 * SEEDS, `${events} events`)
})

t.test('the same seed tells the same story', async t => {
  const [once, again] = [await simulate({ seed: 7 }), await simulate({ seed: 7 })]
  t.strictSame(once.story, again.story)
  t.not(once.story.join(), (await simulate({ seed: 8 })).story.join())
})
