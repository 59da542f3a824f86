/** `keys` in Postgres. */
import type { Pool } from 'pg'
import type { Scope } from '../access.ts'
import { hashKey, type KeptKey, type Key, type KeyPage, type Keys, makeKey, type NewKey } from '../keys.ts'

const COLUMNS =
  'key_id, name, scopes, tenant, created_at, created_by, revoked_at, revoked_by, last_used_at, number::text AS place'

export class PostgresKeys implements Keys {
  readonly #pool: Pick<Pool, 'query'>

  constructor(pool: Pick<Pool, 'query'>) {
    this.#pool = pool
  }

  async create({ name, scopes, tenant, createdBy }: NewKey) {
    const { keyId, secret } = makeKey()
    const { rows } = await this.#pool.query<KeyRow>(
      `INSERT INTO rollcall.keys (key_id, name, secret_hash, scopes, tenant, created_by)
       VALUES ($1, $2, $3, $4, $5, $6)
       ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING RETURNING ${COLUMNS}`,
      [keyId, name, hashKey(secret), scopes, tenant, createdBy],
    )
    return rows[0] ? { key: keyOf(rows[0]), secret } : null
  }

  async list({ before, limit }: { before: string | null; limit: number }): Promise<KeyPage> {
    const found = await this.#pool.query<KeyRow>(
      `SELECT ${COLUMNS} FROM rollcall.keys WHERE $1::bigint IS NULL OR number < $1 ORDER BY number DESC LIMIT $2`,
      [before, limit + 1],
    )
    const rows = found.rows.slice(0, limit)
    return { keys: rows.map(keyOf), next: found.rows.length > limit ? rows.at(-1)!.place : null }
  }

  async revoke(idOrName: string, by: string): Promise<Key | null> {
    const { rows } = await this.#pool.query<KeyRow>(
      `UPDATE rollcall.keys SET revoked_at = coalesce(revoked_at, clock_timestamp()), revoked_by = coalesce(revoked_by, $2)
        WHERE key_id = $1 OR (name = $1 AND revoked_at IS NULL) RETURNING ${COLUMNS}`,
      [idOrName, by],
    )
    return rows[0] ? keyOf(rows[0]) : null
  }

  async find(keyIds: readonly string[]): Promise<KeptKey[]> {
    const { rows } = await this.#pool.query<KeyRow & { secret_hash: Buffer }>({
      name: 'keys-find',
      text: `SELECT ${COLUMNS}, secret_hash FROM rollcall.keys WHERE key_id = ANY ($1::text[]) AND revoked_at IS NULL`,
      values: [keyIds],
    })
    return rows.map(row => ({ key: keyOf(row), secretHash: row.secret_hash }))
  }

  async used(keyId: string): Promise<void> {
    await this.#pool.query({
      name: 'keys-used',
      text: `UPDATE rollcall.keys SET last_used_at = clock_timestamp()
              WHERE key_id = $1 AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')`,
      values: [keyId],
    })
  }

  async any(): Promise<boolean> {
    const { rows } = await this.#pool.query('SELECT 1 FROM rollcall.keys WHERE revoked_at IS NULL LIMIT 1')
    return rows.length > 0
  }
}

interface KeyRow {
  key_id: string
  name: string
  scopes: Scope[]
  tenant: string | null
  created_at: Date
  created_by: string
  revoked_at: Date | null
  revoked_by: string | null
  last_used_at: Date | null
  place: string
}

const keyOf = (row: KeyRow): Key => ({
  keyId: row.key_id,
  name: row.name,
  scopes: row.scopes,
  tenant: row.tenant,
  createdAt: row.created_at,
  createdBy: row.created_by,
  revokedAt: row.revoked_at,
  revokedBy: row.revoked_by,
  lastUsedAt: row.last_used_at,
})
