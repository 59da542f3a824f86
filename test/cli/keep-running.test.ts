import pino from 'pino'
import t from 'tap'
import { keepRunning } from '../../src/cli/keep-running.ts'

const logger = pino({ level: 'silent' })
const killed = Promise.resolve({ code: null, signal: 'SIGKILL' })
const broker = { name: 'the Kafka broker', code: 'kafka_ended', logger, stopping: () => false }

t.test('a server that ends again and again is given up after three more starts', async t => {
  let restarts = 0
  const failure = await keepRunning({
    ...broker,
    exited: () => killed,
    restart: async () => {
      restarts++
    },
  })
  t.equal(restarts, 3)
  t.match(failure, { code: 'kafka_ended', exitCode: 1 })
  t.match(
    failure?.message,
    /^The Kafka broker cannot be kept running: it ended 4 times in 5 minutes, last by SIGKILL\./,
  )
})

t.test('a server that does not start again is a failure, unless it was stopped meanwhile', async t => {
  const restart = () => Promise.reject(new Error('no room'))
  const failure = await keepRunning({ ...broker, exited: () => killed, restart })
  t.match(failure?.message, /it ended by SIGKILL and does not start again: no room/)
  let asked = false
  const stopping = () => asked
  const stopped = await keepRunning({
    ...broker,
    exited: () => killed,
    stopping,
    restart: () => {
      asked = true
      return restart()
    },
  })
  t.equal(stopped, null)
})

t.test('an end that was asked for is none to be mended', async t => {
  const restart = () => t.fail('it is not started again') as never
  t.equal(await keepRunning({ ...broker, stopping: () => true, exited: () => killed, restart }), null)
})
