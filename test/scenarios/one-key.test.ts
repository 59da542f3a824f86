/** One wish, sent again and again to whoever lives: one task, and never a 5xx. The rest of the orders is nightly. */
import t from 'tap'
import { type Moment, oneKeyDrill } from './one-key.ts'
import { assertOneTask } from './one-key-assertions.ts'

const RUNS: [submits: number, deaths: Moment[]][] = [
  [5_000, ['unanswered', 'midway']],
  [200, ['before', 'under_way']],
]

for (const [submits, deaths] of RUNS)
  t.test(
    `S54 ${submits} submits with one key over three processes, of which two die (${deaths.join(', ')}): one task`,
    { timeout: 120_000 },
    async t => {
      const report = await oneKeyDrill(t, submits, deaths)
      assertOneTask(t, submits, deaths, report)
    },
  )
