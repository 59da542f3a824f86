/** What is answered where no route takes a request: 405 where other methods of its path do, else 404. */
import type { FastifyInstance } from 'fastify'
import FindMyWay, { type HTTPMethod } from 'find-my-way'
import { Problem } from './problems.ts'

/**
 * Answers what no route takes; knows the routes that are registered after it.
 *
 * @param maxParamLength in characters, as the application's own router has it
 */
export function answerNoRoute(app: FastifyInstance, maxParamLength: number): void {
  // Fastify keeps its router to itself, so the routes stand once more in one of the same kind.
  const routes = FindMyWay({ maxParamLength })
  app.addHook('onRoute', ({ method, url }) => routes.on(method as HTTPMethod | HTTPMethod[], url, () => {}))
  /** Those of the route that fits best: a word in the place of an id is no id where it names something itself. */
  const allowedFor = (path: string): string[] => {
    const fits = app.supportedMethods.flatMap(method => {
      const found = routes.find(method as HTTPMethod, path)
      return found ? [{ method, params: Object.keys(found.params).length }] : []
    })
    const least = Math.min(...fits.map(({ params }) => params))
    return fits.flatMap(({ method, params }) => (params === least ? [method] : [])).sort()
  }
  app.setNotFoundHandler((request, reply) => {
    const [path = ''] = request.url.split('?')
    const allowed = allowedFor(path).join(', ')
    if (allowed === '')
      return new Problem('route_not_found', `${request.method} ${path} is not a route of this API.`).send(
        reply,
      )
    reply.header('allow', allowed)
    return new Problem('method_not_allowed', `${path} takes ${allowed}, not ${request.method}.`).send(reply)
  })
}
