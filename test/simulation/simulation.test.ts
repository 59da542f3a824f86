import t from 'tap'
import { BROKEN } from './broken.ts'
import { shrink, storyOf } from './shrink.ts'
import { type SimulationReport, simulate } from './simulation.ts'

const SEEDS = 2_000
const BROKEN_SEEDS = 800

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

for (const [guard, broken] of Object.entries(BROKEN))
  t.test(`without the guard "${guard}" it goes wrong, and a short story says how`, async t => {
    let found: SimulationReport | null = null
    for (let seed = 1; seed <= BROKEN_SEEDS && !found; seed++) {
      const report = await simulate({ seed, broken })
      if (report.violations.length > 0) found = report
    }
    t.ok(found, 'a seed goes wrong')
    if (!found) return
    const shortest = await shrink({ seed: found.seed, broken })
    t.ok(shortest.violations.length > 0)
    t.ok(storyOf(shortest).length <= storyOf(found).length)
    t.comment(`seed ${found.seed}: ${shortest.violations[0]}`)
  })
