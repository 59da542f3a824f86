import t from 'tap'
import { vanish } from '../long/streams-drill.ts'

t.test('500 clients connect and vanish, and nothing of them stays', t => vanish(t, 500, 3))
