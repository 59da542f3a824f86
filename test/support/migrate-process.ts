/** A process of its own that migrates a database and writes what it applied: `migrate-process.ts <url>`. */
import { migrate } from '../../src/runtime/migrate.ts'

process.stdout.write(JSON.stringify(await migrate(process.argv[2]!)))
