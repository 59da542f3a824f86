/** A whole service as a process of its own, on a database that need not be durable: `service-process.ts <databaseUrl>`. */
import pino from 'pino'
import { fileConfigSchema, serviceConfigSchema } from '../../src/runtime/config.ts'
import { startService } from '../../src/runtime/service.ts'

const [databaseUrl] = process.argv.slice(2)
const service = await startService({
  ...serviceConfigSchema.parse({ databaseUrl, port: 0 }),
  file: fileConfigSchema.parse({}),
  logger: pino({ level: 'silent' }),
  requireDurable: false,
})
process.stdout.write(`${JSON.stringify({ ready: true, url: service.url })}\n`)
