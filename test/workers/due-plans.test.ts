import t from 'tap'
import { comparePlans, comparePlansWhenAlmostEmpty, comparePlansWhenNew } from './look-plans.ts'

t.test('with 10,000 open tasks a look and a claim read by the indexes that were reviewed', t =>
  comparePlans(t, 10_000),
)

t.test('with 300,000 open tasks the plans are the same', t => comparePlans(t, 300_000))

t.test('in a new database claims and dispatchers take in the order of the index', comparePlansWhenNew)

t.test(
  'what is planned once looks rows up by their keys, also where hardly any stood there',
  comparePlansWhenAlmostEmpty,
)
