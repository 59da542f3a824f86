/** Rollcall's third promise, "nothing accepted is lost", rests on settings of a server that others may administer. */

/** The part of a connection that is needed; a client or a pool of `pg` has it. */
export interface Queryable {
  query(sql: string): Promise<{ rows: Record<string, unknown>[] }>
}

/** The settings of a server on which a commit is durable. */
export interface DurableSettings {
  fsync: 'on'
  fullPageWrites: 'on'
  /** `on`, or `remote_apply` where a synchronous standby has to apply the commit as well. */
  synchronousCommit: string
}

/** The connected server may lose or garble what it has confirmed; the message names every setting at fault. */
export class DurabilityError extends Error {
  override readonly name = 'DurabilityError'
  readonly code = 'not_durable'
}

/** What each setting may be. `local` and `remote_write` confirm what a failover may lose. */
const REQUIRED: Record<string, string[]> = {
  fsync: ['on'],
  full_page_writes: ['on'],
  synchronous_commit: ['on', 'remote_apply'],
  server_encoding: ['UTF8'], // any other refuses or changes some of the texts that users send
}

/** Check the server behind this connection, as it is set for this role and database; throws {@link DurabilityError}. */
export async function assertDurable(client: Queryable): Promise<DurableSettings> {
  const columns = Object.keys(REQUIRED).map(name => `current_setting('${name}') AS ${name}`)
  const { rows } = await client.query(`SELECT ${columns.join(', ')}`)
  const found = rows[0] ?? {}
  const faults = Object.entries(REQUIRED)
    .filter(([name, allowed]) => !allowed.includes(String(found[name])))
    .map(([name, allowed]) => `${name} is ${found[name]} and must be ${allowed.join(' or ')}`)
  if (faults.length > 0) {
    throw new DurabilityError(
      `The Postgres server may lose what it has confirmed: ${faults.join('; ')}. Change it in the server's ` +
        'configuration (the encoding: in a new database) and start Rollcall again.',
    )
  }
  return { fsync: 'on', fullPageWrites: 'on', synchronousCommit: String(found.synchronous_commit) }
}
