/** Access keys: made, looked at and revoked by whoever has the scope admin. */
import { keyView } from '../keys.ts'
import { originOf } from '../origin.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { Problem } from '../problems.ts'
import {
  type CreatedKey,
  createdKeySchema,
  type KeyList,
  type KeyView,
  keyListSchema,
  keyParamsSchema,
  keySchema,
  keysQuerySchema,
  newKeySchema,
  revokeKeySchema,
} from '../schemas/keys.ts'

const config = { scope: 'admin', whole: true } as const

export function keyRoutes(app: TypedApp, { keys, ring, logger }: AppParts): void {
  app.post(
    '/v1/keys',
    { config, schema: { body: newKeySchema, response: { 201: createdKeySchema } } },
    async (request, reply) => {
      const { actor } = originOf(request)
      const made = await keys.create({ ...request.body, createdBy: actor.id })
      if (!made) throw new Problem('key_name_taken')
      const { keyId, name, scopes, tenant } = made.key
      logger.warn({ keyId, key: name, scopes, tenant, by: actor.id }, 'an access key was made')
      // The one answer that holds it: nobody on the way may keep it.
      reply.code(201).header('cache-control', 'no-store')
      return { ...keyView(made.key), secret: made.secret } satisfies CreatedKey
    },
  )

  app.get(
    '/v1/keys',
    { config, schema: { querystring: keysQuerySchema, response: { 200: keyListSchema } } },
    async request => {
      const { limit, cursor } = request.query
      const page = await keys.list({ before: cursor ?? null, limit })
      return { keys: page.keys.map(keyView), nextCursor: page.next } satisfies KeyList
    },
  )

  app.post(
    '/v1/keys/:id/revoke',
    { config, schema: { params: keyParamsSchema, body: revokeKeySchema, response: { 200: keySchema } } },
    async request => {
      const { actor } = originOf(request)
      const key = await keys.revoke(request.params.id, actor.id)
      if (!key) throw new Problem('key_not_found')
      ring.forget(key.keyId)
      logger.warn({ keyId: key.keyId, key: key.name, by: key.revokedBy }, 'an access key is revoked')
      return keyView(key) satisfies KeyView
    },
  )
}
