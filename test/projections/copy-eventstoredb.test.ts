import t from 'tap'
import { thereAndBack } from './copy-there-and-back.ts'

t.setTimeout(180_000)
t.test('a running installation moves from Postgres to EventStoreDB and back', t => thereAndBack(t, 5_000))
