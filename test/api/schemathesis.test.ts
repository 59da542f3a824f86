/** Requests made from the document, and answers held to it; `test/long/schemathesis.test.ts` has many more. */
import t from 'tap'
import { schemathesis } from '../support/schemathesis.ts'

t.test('1,000 examples: no answer is an error of the service, none is other than documented', t =>
  schemathesis(t, {
    seed: 1,
    phases: 'coverage,fuzzing',
    perOperation: 2,
    atLeast: 1_000,
    timeoutMs: 240_000,
  }),
)
