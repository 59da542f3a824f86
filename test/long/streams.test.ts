/** Nightly: 5,000 streams at once, again and again; the heap of the service is back where it was. */
import t from 'tap'
import { vanish } from './streams-drill.ts'

t.test('5,000 clients connect and vanish', { timeout: 30 * 60_000 }, t => vanish(t, 5_000, 5))
