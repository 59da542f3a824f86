/**
 * A real Kafka that is killed, restarted and frozen, and a network of its own for each of its clients: a client is told
 * by the listener it came to where to find the broker, so each has a listener, which says the address of its proxy.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { destination, pino } from 'pino'
import { type KafkaBroker, startKafkaBroker } from '../../../src/runtime/kafka-broker/kafka-broker.ts'
import { steadyPort } from '../../../src/runtime/port.ts'
import type { TcpProxy } from '../../support/tcp-proxy.ts'
import { KAFKA_LINKS, type KafkaLinkName } from './kinds.ts'

const STARTS = 4

type Log = ReturnType<typeof destination>

export class KafkaServer {
  /** Ends that nobody asked for. */
  readonly crashes: string[] = []
  readonly #broker: KafkaBroker
  readonly #log: Log
  #running = true
  /** One order after the other: an end and a start take longer than the pause that the plan knows. */
  #orders: Promise<void> = Promise.resolve()

  private constructor(broker: KafkaBroker, log: Log) {
    this.#broker = broker
    this.#log = log
    this.#watch()
  }

  /** Its links lead to it from then on. */
  static async start(
    dataDir: string,
    logPath: string,
    links: Readonly<Record<KafkaLinkName, TcpProxy>>,
  ): Promise<KafkaServer> {
    const listeners: string[] = []
    const advertised: string[] = []
    for (const [index, link] of KAFKA_LINKS.entries()) {
      const port = await steadyPort()
      links[link].lead(port)
      listeners.push(`LINK${index}://127.0.0.1:${port}`)
      advertised.push(`LINK${index}://127.0.0.1:${links[link].port}`)
    }
    const log = destination({ dest: logPath, sync: false })
    const broker = await startKafkaBroker({
      dataDir,
      logger: pino({ level: 'debug' }, log),
      properties: {
        listeners: listeners.join(','),
        'advertised.listeners': advertised.join(','),
        'listener.security.protocol.map': KAFKA_LINKS.map((_, index) => `LINK${index}:PLAINTEXT`).join(','),
      },
    })
    return new KafkaServer(broker, log)
  }

  /** Where it is reached without a proxy. */
  get brokers(): readonly string[] {
    return this.#broker.brokers
  }

  /** Ends it, in order or by SIGKILL, and starts it again after the pause. */
  restart(how: 'orderly' | 'SIGKILL', pauseMs: number): Promise<void> {
    return this.#inTurn(async () => {
      this.#running = false
      await (how === 'orderly' ? this.#broker.stop() : this.#broker.kill())
      await sleep(pauseMs)
      await this.#startAgain()
    })
  }

  /** SIGSTOP, and SIGCONT after so long. */
  freeze(forMs: number): Promise<void> {
    return this.#inTurn(async () => {
      process.kill(this.#broker.pid, 'SIGSTOP')
      await sleep(forMs)
      process.kill(this.#broker.pid, 'SIGCONT')
    })
  }

  async close(): Promise<void> {
    await this.#orders.catch(() => {})
    this.#running = false
    await this.#broker.stop()
    this.#log.end()
  }

  #inTurn(order: () => Promise<void>): Promise<void> {
    this.#orders = this.#orders.then(order)
    return this.#orders
  }

  async #startAgain(): Promise<void> {
    for (let tries = 1; ; tries++) {
      try {
        await this.#broker.restart()
        break
      } catch (error) {
        if (tries === STARTS) throw error
      }
    }
    this.#running = true
    this.#watch()
  }

  #watch(): void {
    const { pid } = this.#broker
    void this.#broker.exited.then(({ code, signal }) => {
      if (this.#running && this.#broker.pid === pid)
        this.crashes.push(`the Kafka broker ended by itself with ${signal ?? `code ${code}`}`)
    })
  }
}
