import t from 'tap'
import { recover } from '../workers/recovery-drill.ts'

t.test('S68 the timers were down while 50,000 tasks became overdue', t =>
  recover(t, { overdue: 50_000, late: 5_000, graceMs: 10_000 }),
)
