/** Logs 2,000 lines as fast as it can and ends: by itself, by `exit`, or by `throw`. */
import { createLogger } from '../../src/runtime/logging.ts'

const logger = createLogger('info')
for (let number = 0; number < 2_000; number++) logger.info({ number, worker: 'wörker ✓' }, 'transition')
if (process.argv[2] === 'exit') process.exit(0)
if (process.argv[2] === 'throw') throw new Error('as asked')
