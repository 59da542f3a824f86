import type { FastifyReply } from 'fastify'

/** Aborted when the caller goes away before it is answered (PITFALLS H2: the request's own close says nothing). */
export function goneSignal(reply: FastifyReply): AbortSignal {
  const gone = new AbortController()
  reply.raw.on('close', () => {
    if (!reply.raw.writableFinished) gone.abort()
  })
  return gone.signal
}
