import type { Command } from 'commander'
import type { CreatedKey, KeyList, KeyView } from '../../api/schemas/keys.ts'
import { terminalOf } from '../connection.ts'
import { printable, relative } from '../format.ts'
import { type KeyPlaceOptions, openKeyPlace } from '../key-place.ts'
import type { Terminal } from '../terminal.ts'
import { collect, wholeNumber } from '../values.ts'

const PAGE_MAX = 200

interface CreateOptions extends KeyPlaceOptions {
  name: string
  scopes: string[]
  tenant?: string
}

interface ListOptions extends KeyPlaceOptions {
  limit: number
  cursor?: string
}

const HELP = `
Over the service with a key of the scope admin, or in its database: that is how the first key is made.
  --database-url  the database of rollcall serve
  --data-dir      that of a rollcall dev that runs
Without either the service is asked, unless ROLLCALL_DATABASE_URL is set and neither --url, --key nor their environment.`

export function addKeys(program: Command): void {
  const group = program
    .command('keys')
    .description('access keys: make, list and revoke them')
    .helpCommand(false)
    .addHelpText('after', HELP)
  withPlace(group.command('create'))
    .description('make a key and print it, this one time')
    .requiredOption('--name <name>', 'who it is for; histories show it')
    .requiredOption('--scopes <scopes>', 'submit, read, work, operate, audit, admin, or all', collect)
    .option('--tenant <name>', 'the only tenant it reaches (default: all)')
    .action(async (options: CreateOptions, command: Command) => {
      const terminal = terminalOf(command)
      const { name, tenant } = options
      const { SCOPES } = await import('../../api/access.ts')
      const scopes = options.scopes.includes('all') ? SCOPES : options.scopes
      const place = await openKeyPlace(command, options)
      const made = await place.within(keys => keys.create({ name, scopes, tenant }))
      terminal.aside(`key ${made.keyId} for ${name}; keep it now, it cannot be shown again:`)
      terminal.result(made satisfies CreatedKey, () => made.secret)
    })
  withPlace(group.command('list'))
    .description('list keys, the newest first')
    .option('--limit <n>', 'how many at most', wholeNumber(1, PAGE_MAX), 50)
    .option('--cursor <cursor>', 'go on after a page, with its nextCursor')
    .action(async (options: ListOptions, command: Command) => {
      const terminal = terminalOf(command)
      const place = await openKeyPlace(command, options)
      const page = await place.within(keys => keys.list(options))
      const lines = terminal.json ? [] : await listLines(page, terminal)
      terminal.result(page, () => lines.join('\n'))
    })
  withPlace(group.command('revoke'))
    .description('end a key; within five seconds it opens nothing')
    .argument('<key>', 'its id or its name')
    .action(async (key: string, options: KeyPlaceOptions, command: Command) => {
      const terminal = terminalOf(command)
      const place = await openKeyPlace(command, options)
      const revoked = await place.within(keys => keys.revoke(key))
      terminal.result(
        revoked,
        () => `${revoked.keyId}  ${revoked.name}  revoked ${relative(revoked.revokedAt!)}`,
      )
    })
}

const withPlace = (command: Command): Command =>
  command
    .option('--database-url <address>', 'work on this database instead of asking the service')
    .option('--data-dir <folder>', 'work on the database of the rollcall dev that runs there')

async function listLines({ keys, nextCursor }: KeyList, { colors }: Terminal): Promise<string[]> {
  if (keys.length === 0) return ['no keys']
  const { tableLines, widthOf } = await import('../table.ts')
  const rows = keys.map(key => [
    key.keyId,
    printable(key.name),
    key.scopes.join(','),
    key.tenant ?? '-',
    relative(key.createdAt),
    key.lastUsedAt === null ? 'never' : relative(key.lastUsedAt),
    stateOf(key),
  ])
  const titles = ['KEY', 'NAME', 'SCOPES', 'TENANT', 'MADE', 'USED', 'STATE']
  const columns = titles.map((title, at) => ({
    title,
    width: widthOf(
      title,
      rows.map(row => row[at]!),
      40,
    ),
  }))
  return [
    ...tableLines(columns, rows, colors.dim),
    ...(nextCursor === null ? [] : [colors.dim(`there are older ones: --cursor ${nextCursor}`)]),
  ]
}

const stateOf = ({ revokedAt }: KeyView): string =>
  revokedAt === null ? 'live' : `revoked ${relative(revokedAt)}`
