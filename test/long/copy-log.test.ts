/** Nightly: the move of 100,000 events there and back, with clients that submit all the time. */
import t from 'tap'
import { thereAndBack } from '../projections/copy-there-and-back.ts'

t.setTimeout(1_800_000)
t.test('100,000 events', { timeout: 1_800_000 }, t => thereAndBack(t, 100_000))
