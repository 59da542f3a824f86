/** As `test/api/schemathesis.test.ts`, with many more examples. */
import t from 'tap'
import { schemathesis } from '../support/schemathesis.ts'

t.test('20,000 examples: no answer is an error of the service, none is other than documented', t =>
  schemathesis(t, { phases: 'coverage,fuzzing', perOperation: 700, atLeast: 20_000, timeoutMs: 5_400_000 }),
)
