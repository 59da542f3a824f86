import type { FastifyReply } from 'fastify'

/**
 * Aborted when the caller goes away before it is answered (PITFALLS H2: the request's own close says nothing). The end of
 * what it sends says so already: Node closes such a connection, and the reply's own close comes some turns later, in which
 * a waiting claim could be handed a task.
 */
export function goneSignal(reply: FastifyReply): AbortSignal {
  const gone = new AbortController()
  const { socket } = reply.request.raw
  const ended = (): void => gone.abort()
  socket.once('end', ended)
  reply.raw.on('close', () => {
    socket.off('end', ended)
    if (!reply.raw.writableFinished) gone.abort()
  })
  return gone.signal
}
