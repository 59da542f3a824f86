/** What is done to the broker, and to what goes over it. */
import type { KafkaServer } from './kafka-server.ts'
import type { KafkaTraffic } from './kafka-traffic.ts'
import type { KafkaFaultKind } from './kinds.ts'
import { until } from './parts.ts'
import type { Random } from './random.ts'

const SAMPLES_MS = 60_000
const LAST = { garbage: 12, again: 30 }

/** Lets a fault strike; resolves when it is over. */
export async function strikeKafka(
  { server, traffic }: { server: KafkaServer; traffic: KafkaTraffic },
  { kind, forMs, amount }: { kind: KafkaFaultKind; forMs: number; amount: number },
  random: Random,
): Promise<void> {
  switch (kind) {
    case 'kafka_kill':
      return server.restart('SIGKILL', forMs)
    case 'kafka_restart':
      return server.restart('orderly', forMs)
    case 'kafka_freeze':
      return server.freeze(forMs)
    case 'kafka_redeliver':
      return traffic.redeliver(amount, random)
    case 'kafka_garbage':
      return traffic.spoil(amount, random)
    default:
      return kind satisfies never
  }
}

/** The last thing of all: whatever was the machine's pace, there is something of each that has to be survived. */
export async function endKafkaFaults({ traffic }: { traffic: KafkaTraffic }, random: Random): Promise<void> {
  await until(SAMPLES_MS, () => traffic.hasSamples)
  await traffic.spoil(LAST.garbage, random)
  await traffic.redeliver(LAST.again, random)
}
