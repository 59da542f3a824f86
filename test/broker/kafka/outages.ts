/** A broker that goes away under load, for the short tests and the long ones. */
import type { Test } from 'tap'
import type { Broker } from '../../../src/broker/broker.ts'
import type { KafkaBroker } from '../../../src/runtime/kafka-broker/kafka-broker.ts'
import { uniqueName } from '../../support/kafka.ts'
import { open, type Reader, read, record, until } from './fixture.ts'

const settled = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, ms))

interface Load {
  sent: number
  failed: number
  /** Ends it when its last record is sent. */
  end(): Promise<void>
}

/** One record after the other, each sent again until the broker has it. */
export function load(t: Test, broker: Broker, topic: string): Load {
  let ended = false
  const state = { sent: 0, failed: 0 }
  const send = async (): Promise<void> => {
    for (let i = 0; !ended; i++) {
      for (;;) {
        try {
          await broker.send(topic, [record(`k${i}`)])
          state.sent++
          break
        } catch (error) {
          if ((error as { code?: string }).code !== 'broker_unavailable') throw error
          state.failed++
          if (ended) return
        }
      }
      await settled(5)
    }
  }
  const sending = send()
  sending.catch(() => {})
  t.teardown(() => {
    ended = true
  })
  return Object.assign(state, {
    end: () => {
      ended = true
      return sending
    },
  })
}

/** Each key came. */
const whole = ({ sent }: { sent: number }, reader: Reader): boolean => new Set(reader.keys()).size === sent

/** Stops the broker for so long, in order or not, and waits until all is well again. */
export async function outage(
  t: Test,
  server: KafkaBroker,
  { awayMs, kill = false }: { awayMs: number; kill?: boolean },
): Promise<void> {
  const { broker } = open(t, server)
  const topic = uniqueName('outage')
  await broker.ensureTopics([{ name: topic, partitions: 3, compacted: false }])
  const reader = read(broker, [topic])
  const loading = load(t, broker, topic)
  await until('it flows', () => reader.got.length > 50 && reader.consumer.health().ok)
  await (kill ? server.kill() : server.stop())
  const before = performance.now()
  await until('the health says so', () => !reader.consumer.health().ok, 5_000)
  await until('the health names the broker', () =>
    /cannot be reached/.test(reader.consumer.health().reason ?? ''),
  )
  await settled(awayMs - (performance.now() - before))
  await server.restart()
  const back = performance.now()
  await until('it is well', () => reader.consumer.health().ok, 20_000)
  const then = reader.got.length
  await until('it flows again', () => reader.got.length > then + 50)
  const wellMs = performance.now() - back
  t.comment(`well again after ${Math.round(wellMs)} ms`)
  await loading.end()
  await until('each came', () => whole(loading, reader))
  t.ok(loading.sent > 100)
}
