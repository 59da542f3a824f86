/**
 * Access keys: `rck_<id>_<secret>`, shown once when they are made. The port to where they are kept, and how a key is made
 * and read; `src/api/postgres` has the adapter.
 */
import { hash, randomBytes } from 'node:crypto'
import type { Scope } from './access.ts'
import type { KeyView } from './schemas/keys.ts'

export interface Key {
  keyId: string
  name: string
  scopes: Scope[]
  /** The only tenant it reaches; null reaches every one. */
  tenant: string | null
  createdAt: Date
  createdBy: string
  revokedAt: Date | null
  revokedBy: string | null
  /** Moved once a minute at most. */
  lastUsedAt: Date | null
}

export interface NewKey {
  name: string
  scopes: readonly Scope[]
  tenant: string | null
  createdBy: string
}

/** A key as it is looked up: with the hash of its whole text. */
export interface KeptKey {
  key: Key
  secretHash: Buffer
}

export interface KeyPage {
  keys: Key[]
  /** Where the next page begins, null at the end. */
  next: string | null
}

export interface Keys {
  /** @returns the key with its secret, which nobody can read again; null where a key of this name lives */
  create(key: NewKey): Promise<{ key: Key; secret: string } | null>
  /** The newest first. */
  list(page: { before: string | null; limit: number }): Promise<KeyPage>
  /** By its id or the name of a live one; asked again it stays as it was. @returns null where there is none */
  revoke(idOrName: string, by: string): Promise<Key | null>
  /** Those of these ids that may come in. */
  find(keyIds: readonly string[]): Promise<KeptKey[]>
  /** Keeps that the key is in use. */
  used(keyId: string): Promise<void>
  /** Whether there is any that may come in. */
  any(): Promise<boolean>
}

const KEY = /^rck_([0-9a-f]{16})_[0-9a-f]{64}$/

/** The id in a key's text; null where it is none. */
export const idOfKey = (text: string): string | null => KEY.exec(text)?.[1] ?? null

/** What is kept of a key and compared: never the key itself. */
export const hashKey = (text: string): Buffer => hash('sha256', text, 'buffer')

export function makeKey(): { keyId: string; secret: string } {
  const keyId = randomBytes(8).toString('hex')
  return { keyId, secret: `rck_${keyId}_${randomBytes(32).toString('hex')}` }
}

/** A key as it is answered. */
export const keyView = ({ createdAt, lastUsedAt, revokedAt, ...key }: Key): KeyView => ({
  ...key,
  createdAt: createdAt.toISOString(),
  lastUsedAt: lastUsedAt?.toISOString() ?? null,
  revokedAt: revokedAt?.toISOString() ?? null,
})
