import type { Command } from 'commander'
import { terminalOf } from '../connection.ts'
import { databaseError } from '../database.ts'
import { usageError } from '../failures.ts'

export function addMigrate(program: Command): void {
  program
    .command('migrate')
    .description('prepare a database of yours, or bring it up to date; safe to repeat')
    .option('--database-url <address>', 'the database, postgres://… (default: ROLLCALL_DATABASE_URL)')
    .action(async (options: { databaseUrl?: string }, command: Command) => {
      const terminal = terminalOf(command)
      const url = options.databaseUrl ?? (process.env.ROLLCALL_DATABASE_URL || undefined)
      if (url === undefined)
        throw usageError('Say which database: --database-url postgres://user:password@host:port/name')
      const { serviceConfig } = await import('../../runtime/config.ts')
      const { databaseUrl } = serviceConfig({ databaseUrl: url })
      const { migrate } = await import('../../runtime/migrate.ts')
      const applied = await migrate(databaseUrl).catch(error => {
        throw databaseError(error, databaseUrl)
      })
      terminal.result({ applied }, () =>
        applied.length === 0
          ? 'the database is up to date'
          : `applied ${applied.join(', ')}; the database is up to date`,
      )
    })
}
