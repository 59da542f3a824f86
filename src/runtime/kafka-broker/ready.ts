/** Whether a broker can be worked with: an open port says nothing of it. */

import { setTimeout as delay } from 'node:timers/promises'
import { Kafka, logLevel } from 'kafkajs'
import type { BrokerProcess } from './process.ts'

const POLL_MS = 50

/** Waits until the broker says who is in the cluster and the coordinator of a group answers, or it ended, or time is up. */
export async function untilReady(
  broker: BrokerProcess,
  address: string,
  timeoutMs: number,
): Promise<'ready' | 'ended' | 'silent'> {
  const deadline = performance.now() + timeoutMs
  while (!broker.exit) {
    if (await answers(address)) return 'ready'
    if (performance.now() > deadline) return 'silent'
    await delay(POLL_MS)
  }
  await delay(POLL_MS) // what it wrote last may still be on its way
  return 'ended'
}

async function answers(address: string): Promise<boolean> {
  const retry = { retries: 0, initialRetryTime: POLL_MS }
  const admin = new Kafka({
    brokers: [address],
    connectionTimeout: 1_000,
    requestTimeout: 3_000,
    logLevel: logLevel.NOTHING,
    retry,
  }).admin({ retry })
  try {
    await admin.connect()
    const { brokers } = await admin.describeCluster()
    if (brokers.length === 0) return false
    // The first to ask for a coordinator has it made, with the topic it works from; all groups have the same.
    await admin.fetchOffsets({ groupId: 'rollcall-is-it-ready', topics: [] })
    return true
  } catch {
    return false
  } finally {
    await admin.disconnect().catch(() => {})
  }
}
