/**
 * What handlers bring about, on its way to the service: whatever waits when a request returns goes with the
 * next one. A report is repeated, with the same command id, until it is answered or the worker has to end; the
 * service recognises what it has had before.
 */
import { isPassing, isServiceAway, RollcallError } from './errors.ts'
import type { Delivered, Link, Report } from './link.ts'
import type { Outage } from './outage.ts'
import { backoffMs, sleep, Wakeup, waitUntil } from './waiting.ts'

/** How the service took a report; `undelivered` where the worker had to end first. */
export type Delivery = Delivered | { kind: 'undelivered' }

/** A report on its way. */
export interface Sent {
  readonly delivered: Promise<Delivery>
}

interface Entry extends Sent {
  report: Report
  bytes: number
  resolve: (delivery: Delivery) => void
}

const BATCH_MAX = 500
/** Below the usual limit of 1 MiB for a body; a single report (a result of 256 KiB) always fits. */
const BATCH_MAX_BYTES = 512 * 1024
const BACKOFF = { initialMs: 50, maxMs: 2_000 }
/** The service's Retry-After is heeded up to here. */
const RETRY_AFTER_MAX_MS = 30_000
/** Statuses that blame the request itself: sending the same again is no use. */
const POISON_STATUSES = new Set([400, 413, 422])
/** A member that alone is put off for so long blocks the others; after so many rounds it counts as refused. */
const PUT_OFF_MAX = 10

export class Reports {
  readonly #link: Pick<Link, 'report'>
  readonly #outage: Outage
  readonly #ending = new AbortController()
  readonly #changed = new Wakeup()
  readonly #waiting: Entry[] = []
  #undelivered = 0
  #undeliveredBytes = 0
  #flushing = false

  constructor(link: Pick<Link, 'report'>, outage: Outage) {
    this.#link = link
    this.#outage = outage
  }

  /** Reports not yet answered. */
  get undelivered(): number {
    return this.#undelivered
  }

  get undeliveredBytes(): number {
    return this.#undeliveredBytes
  }

  /** Sends a report after those that wait. */
  send(report: Report): Sent {
    let resolve: Entry['resolve'] = () => {}
    const delivered = new Promise<Delivery>(settle => {
      resolve = settle
    })
    const entry: Entry = { report, bytes: Buffer.byteLength(report.json), resolve, delivered }
    this.#undelivered++
    this.#undeliveredBytes += entry.bytes
    if (this.#ending.signal.aborted) this.#settle(entry, { kind: 'undelivered' })
    else {
      this.#waiting.push(entry)
      void this.#flush()
    }
    return entry
  }

  /** Puts another report in the place of one that was never on its way; false where it is too late for that. */
  replace(sent: Sent, report: Report): boolean {
    const entry = this.#waiting.find(waiting => waiting === sent)
    if (!entry) return false
    const bytes = Buffer.byteLength(report.json)
    this.#undeliveredBytes += bytes - entry.bytes
    entry.report = report
    entry.bytes = bytes
    return true
  }

  /** Waits until all is answered, `ms` at most; then gives up on the rest and says how many that were. */
  async end(ms: number): Promise<number> {
    await waitUntil(() => this.#undelivered === 0, this.#changed, ms)
    const lost = this.#undelivered
    this.#ending.abort(new Error('the worker has ended'))
    for (const entry of this.#waiting.splice(0)) this.#settle(entry, { kind: 'undelivered' })
    return lost
  }

  async #flush(): Promise<void> {
    if (this.#flushing) return
    this.#flushing = true
    // Outcomes of the same turn go together.
    await Promise.resolve()
    while (this.#waiting.length > 0) await this.#deliver(this.#take())
    this.#flushing = false
  }

  #take(): Entry[] {
    let bytes = 0
    let count = 0
    for (const entry of this.#waiting) {
      if (count === BATCH_MAX || (count > 0 && bytes + entry.bytes > BATCH_MAX_BYTES)) break
      bytes += entry.bytes
      count++
    }
    return this.#waiting.splice(0, count)
  }

  /** Sends a batch until each of it is settled; never rejects. */
  async #deliver(batch: Entry[]): Promise<void> {
    let open = batch
    for (let failures = 0, rounds = 1; open.length > 0; ) {
      let waitMs: number
      try {
        const results = await this.#link.report(
          open.map(({ report }) => report),
          this.#ending.signal,
        )
        failures = 0
        open = this.#sort(open, results, rounds++)
        if (open.length === 0) this.#outage.over()
        else this.#outage.failed(new Error('the service put reports off'), { putOff: open.length })
        waitMs = backoffMs(BACKOFF, rounds)
      } catch (error) {
        if (this.#ending.signal.aborted) break
        if (error instanceof RollcallError && POISON_STATUSES.has(error.status))
          return this.#isolate(open, error)
        this.#outage.failed(error, { undelivered: this.#undelivered })
        const asked = error instanceof RollcallError ? (error.retryAfterMs ?? 0) : 0
        waitMs = Math.max(backoffMs(BACKOFF, ++failures), Math.min(asked, RETRY_AFTER_MAX_MS))
      }
      if (open.length > 0) await sleep(waitMs, this.#ending.signal)
      if (this.#ending.signal.aborted) break
    }
    for (const entry of open) this.#settle(entry, { kind: 'undelivered' })
  }

  /** Settles what is answered; returns what the service put off. */
  #sort(batch: readonly Entry[], results: readonly Delivered[], round: number): Entry[] {
    const putOff: Entry[] = []
    batch.forEach((entry, index) => {
      const result = results[index]!
      const code = result.kind === 'refused' ? result.code : null
      if (isServiceAway(code) || (isPassing(code) && round < PUT_OFF_MAX)) putOff.push(entry)
      else this.#settle(entry, result)
    })
    return putOff
  }

  /** The service cannot take the batch as a whole: halves find the member at fault, which is refused alone. */
  async #isolate(batch: Entry[], error: RollcallError): Promise<void> {
    const [first] = batch
    if (batch.length === 1 && first) {
      this.#settle(first, { taskId: null, kind: 'refused', code: error.code, message: error.detail })
      return
    }
    const half = Math.ceil(batch.length / 2)
    await this.#deliver(batch.slice(0, half))
    await this.#deliver(batch.slice(half))
  }

  #settle(entry: Entry, delivery: Delivery): void {
    this.#undelivered--
    this.#undeliveredBytes -= entry.bytes
    entry.resolve(delivery)
    this.#changed.wake()
  }
}
