/** Access keys as those see them who make and revoke them. */
import { z } from 'zod'
import { SCOPES } from '../access.ts'
import { timeSchema } from './answer-fields.ts'
import { nameSchema, pageLimit } from './common.ts'

export const KEY_LIMIT_MAX = 200

const keyIdSchema = z.string().regex(/^[0-9a-f]{16}$/)

const scopesSchema = z
  .array(z.enum(SCOPES))
  .min(1)
  .max(SCOPES.length)
  .refine(scopes => new Set(scopes).size === scopes.length, 'must not name a scope twice')
  .meta({ uniqueItems: true })

export const newKeySchema = z
  .strictObject({
    /** It stands in histories as who asked. */
    name: nameSchema.refine(
      name => !keyIdSchema.safeParse(name).success,
      'must not look like the id of a key',
    ),
    scopes: scopesSchema,
    /** The only tenant that the key reaches; left out or null, it reaches all of them. */
    tenant: nameSchema.nullable().default(null),
  })
  .meta({ id: 'NewKey' })
export type NewKeyRequest = z.input<typeof newKeySchema>

/** Its id, or the name of one that was not revoked: neither looks like the other. */
export const keyParamsSchema = z.strictObject({ id: nameSchema })
/** Fastify says null where there is no body. */
export const revokeKeySchema = z.strictObject({}).nullable()

export const keysQuerySchema = z.strictObject({
  limit: pageLimit(KEY_LIMIT_MAX, 50),
  cursor: z
    .string()
    .regex(/^\d{1,18}$/, 'is not one that a list has given')
    .optional(),
})

export const keySchema = z
  .strictObject({
    keyId: keyIdSchema.describe('What the key begins with; it opens nothing.'),
    name: z.string(),
    scopes: z.array(z.enum(SCOPES)),
    tenant: z.string().nullable().describe('The only one it reaches; null reaches all.'),
    createdAt: timeSchema,
    createdBy: z.string(),
    lastUsedAt: timeSchema.nullable().describe('Moved once a minute at most.'),
    revokedAt: timeSchema.nullable(),
    revokedBy: z.string().nullable(),
  })
  .meta({ id: 'Key', description: 'An access key, without what opens the door.' })
export type KeyView = z.output<typeof keySchema>

export const createdKeySchema = keySchema
  .extend({
    secret: z.string().describe('The whole key, for the header Authorization. It cannot be read again.'),
  })
  .meta({ id: 'CreatedKey' })
export type CreatedKey = z.output<typeof createdKeySchema>

export const keyListSchema = z
  .strictObject({
    keys: z.array(keySchema).describe('The newest first, revoked ones among them.'),
    nextCursor: z.string().nullable().describe('Give it back as cursor for the next page; null at the end.'),
  })
  .meta({ id: 'KeyList' })
export type KeyList = z.output<typeof keyListSchema>
