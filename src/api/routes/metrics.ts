import type { AppParts, TypedApp } from '../parts.ts'

/** What is counted, for Prometheus; and every request of the API is counted too. */
export function metricsRoutes(app: TypedApp, parts: AppParts): void {
  app.addHook('onResponse', async (request, reply) => {
    const route = request.is404 ? null : (request.routeOptions.url ?? null)
    parts.metrics.requested(route, request.method, reply.statusCode, reply.elapsedTime / 1_000)
  })
  app.get('/metrics', async (_request, reply) =>
    reply.type(parts.metrics.contentType).send(await parts.metrics.scrape()),
  )
}
