/** As `test/api/schemathesis.test.ts`, with 20,000 examples in all. */
import t from 'tap'
import { schemathesis } from '../support/schemathesis.ts'

t.test('19,000 examples: no answer is an error of the service, none is other than documented', t =>
  schemathesis(t, {
    ...{ seed: 1, phases: 'coverage,fuzzing' },
    ...{ perOperation: 600, atLeast: 19_000, timeoutMs: 5_400_000 },
  }),
)

t.test('and 1,500 of another seed', t =>
  schemathesis(t, { seed: 2, phases: 'fuzzing', perOperation: 60, atLeast: 1_500, timeoutMs: 600_000 }),
)
