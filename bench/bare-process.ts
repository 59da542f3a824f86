/** A Fastify server that checks the same body by the same schema and stores nothing: the limit beside which we stand. */
import Fastify from 'fastify'
import { submitSchema } from '../src/api/schemas/tasks.ts'

const app = Fastify()
app.post('/v1/tasks', async (request, reply) => {
  const task = submitSchema.parse(request.body)
  return reply.code(201).send({ taskId: '00000000-0000-7000-8000-000000000000', ...task })
})
const url = await app.listen({ host: '127.0.0.1', port: 0 })
process.on('message', () => void app.close().then(() => process.disconnect()))
process.send?.({ answer: 'ready', url })
