/**
 * The document of the API (OpenAPI 3.1), made of the schemas that the routes check and are held to, and the page to read
 * it. It is built when somebody asks for it first.
 */
import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance, FastifySchema, RouteOptions } from 'fastify'
import { createJsonSchemaTransform, createJsonSchemaTransformObject } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { type ApiDocument, completeDocument } from './complete-document.ts'
import { OPERATIONS } from './operations.ts'
import { HEADERS, originHeaders } from './schemas/headers.ts'
import { packageVersion } from './version.ts'

export const DOCUMENT_PATH = '/openapi.json'
export const READING_PATH = '/docs'

/** Sections of the document: for whom a route is, as its scope says. */
const TAGS = {
  submit: { name: 'Submitters', description: 'Hand in tasks.' },
  read: { name: 'Readers', description: 'Look at tasks and lists, and wait for them.' },
  work: { name: 'Workers', description: 'Claim tasks, start them and report.' },
  operate: { name: 'Operators', description: 'What people do to tasks and to what is stuck.' },
  audit: { name: 'Auditors', description: 'Histories, refusals and proofs.' },
  admin: { name: 'Administrators', description: 'Access keys.' },
  none: { name: 'Probes', description: 'For what watches the process.' },
} as const

/** The schema of a route with what the document says of it; `completeDocument` adds what is no schema of zod. */
function documented(route: RouteOptions, schema: FastifySchema = {}): FastifySchema {
  const operation = OPERATIONS[`${route.method} ${route.url}`]
  if (!operation) return schema
  const { id, summary, description, origin, takes = [] } = operation
  const { scope } = route.config ?? {}
  const headers = {
    ...(origin ? originHeaders : {}),
    ...Object.fromEntries(takes.map(name => [name, HEADERS[name]])),
  }
  return {
    ...schema,
    operationId: id,
    summary,
    ...(description ? { description } : {}),
    tags: [TAGS[scope ?? 'none'].name],
    ...(scope ? { security: [{ bearer: [scope] }] } : {}),
    ...(Object.keys(headers).length > 0 ? { headers: z.object(headers) } : {}),
  }
}

const toJsonSchema = createJsonSchemaTransform({})
const withComponents = createJsonSchemaTransformObject({})

const info = (version: string) => ({
  title: 'Rollcall',
  version,
  description: [
    'The life of asynchronous tasks: at any moment every task answers the roll call.',
    'Answers are closed: they have no field that is not listed here. Open are only payload, result and context, which are',
    'any JSON that was handed in. Every error is a problem (RFC 9457) with a stable `code`.',
  ].join('\n'),
  license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
})

/** Serves the document and the page; to be called before any route is declared. */
export function serveDocument(app: FastifyInstance): void {
  const wholeRoutes = new Set<string>()
  app.addHook('onRoute', ({ method, url, config }) => {
    if (config?.whole) wholeRoutes.add(`${method} ${url}`)
  })
  app.register(swagger, {
    openapi: {
      openapi: '3.1.1',
      info: info(packageVersion()),
      tags: Object.values(TAGS),
      components: {
        securitySchemes: {
          bearer: {
            type: 'http',
            scheme: 'bearer',
            description:
              'An access key; what a route needs of it is its scope. A service on loopback alone may be open: then none is needed.',
          },
        },
      },
    },
    transform: ({ schema, route, ...rest }) =>
      toJsonSchema({ ...rest, route, schema: documented(route, schema) }),
    transformObject: input => completeDocument(withComponents(input) as ApiDocument, wholeRoutes),
  })
  let text: string | null = null
  app.after(() => {
    app.get(DOCUMENT_PATH, { schema: { hide: true } as object }, async (_request, reply) => {
      text ??= JSON.stringify(app.swagger())
      return reply.type('application/json').send(text)
    })
  })
  app.register(swaggerUi, {
    routePrefix: READING_PATH,
    staticCSP: READING_POLICY,
    theme: { title: 'Rollcall' },
    // Without the bar to choose another document.
    uiConfig: { layout: 'BaseLayout' },
    logLevel: 'warn',
  })
}

/** Everything of the page comes from here; its styles stand in its elements. */
const READING_POLICY = {
  'default-src': "'self'",
  'img-src': ["'self'", 'data:'],
  'style-src': ["'self'", "'unsafe-inline'"],
  'frame-ancestors': "'none'",
  'base-uri': "'none'",
  'object-src': "'none'",
}
