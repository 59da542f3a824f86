import { z } from 'zod'
import type { AppParts, TypedApp } from '../parts.ts'

const textSchema = {
  content: { 'text/plain': { schema: z.string().describe('The text format of Prometheus.') } },
}

/** What is counted, for Prometheus; and every request of the API is counted too. */
export function metricsRoutes(app: TypedApp, parts: AppParts): void {
  app.addHook('onResponse', async (request, reply) => {
    const route = request.is404 ? null : (request.routeOptions.url ?? null)
    // A stream is counted when it begins, not when it ends; an answer that was waited for has a name of its own.
    if (request.routeOptions.config.stream && reply.statusCode === 200) return
    const named = reply.hasHeader('preference-applied') ? `${route} wait` : route
    parts.metrics.requested(named, request.method, reply.statusCode, reply.elapsedTime / 1_000)
  })
  app.get(
    '/metrics',
    { config: { scope: 'operate', whole: true }, schema: { response: { 200: textSchema } } },
    async (_request, reply) => reply.type(parts.metrics.contentType).send(await parts.metrics.scrape()),
  )
}
