/** Each guard is taken out once: the simulation has to notice. In a file of its own, beside the stories that go right. */
import t from 'tap'
import { BROKEN } from './broken.ts'
import { shrink, storyOf } from './shrink.ts'
import { type SimulationReport, simulate } from './simulation.ts'

const BROKEN_SEEDS = 800

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
