/** Nightly: `npm run test:long`. Every order in which one or two of three processes can die around the first append. */
import t from 'tap'
import { type Moment, oneKeyDrill } from '../scenarios/one-key.ts'
import { assertOneTask } from '../scenarios/one-key-assertions.ts'

const SUBMITS = 5_000
const LIMIT_MS = 3_600_000
const EARLY: Moment[] = ['before', 'under_way', 'unanswered']
const LATE: Moment[] = ['answered', 'midway']

const ORDERS: Moment[][] = [
  [],
  ...[...EARLY, ...LATE].map(moment => [moment]),
  ...EARLY.flatMap(first => [...EARLY, ...LATE].map(second => [first, second])),
  LATE,
]

t.setTimeout(LIMIT_MS)
for (const deaths of ORDERS)
  t.test(
    `S54 ${SUBMITS} submits with one key; deaths: ${deaths.join(', ') || 'none'}`,
    { timeout: LIMIT_MS },
    async t => {
      assertOneTask(t, SUBMITS, deaths, await oneKeyDrill(t, SUBMITS, deaths))
    },
  )
