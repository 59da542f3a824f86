/** The demo as one watches it: a block redrawn in place at a terminal, a line now and then elsewhere. */
import { bar, cut } from '../format.ts'
import type { Colors } from '../terminal.ts'

export interface Counts {
  PENDING: number
  PROCESSING: number
  RETRYING: number
  SUCCESS: number
  FAILED: number
  CANCELLED: number
}

export const NO_COUNTS: Counts = {
  PENDING: 0,
  PROCESSING: 0,
  RETRYING: 0,
  SUCCESS: 0,
  FAILED: 0,
  CANCELLED: 0,
}

export const finished = ({ SUCCESS, FAILED, CANCELLED }: Counts): number => SUCCESS + FAILED + CANCELLED

export interface Display {
  /** What the demo has done or does now. */
  event(text: string): void
  update(counts: Counts): void
  /** Leaves what stands and writes no more. */
  end(): void
}

export const silentDisplay: Display = { event: () => {}, update: () => {}, end: () => {} }

const EVENTS_SHOWN = 6
const PLAIN_EVERY_MS = 1_000
const RATE_OVER_MS = 4_000

/** @param total how many tasks there are */
export function createDisplay(stream: NodeJS.WriteStream, colors: Colors, total: number): Display {
  return stream.isTTY ? new LiveDisplay(stream, colors, total) : new PlainDisplay(stream, total)
}

class LiveDisplay implements Display {
  readonly #stream: NodeJS.WriteStream
  readonly #colors: Colors
  readonly #total: number
  readonly #since = performance.now()
  readonly #events: string[] = []
  readonly #rates: { at: number; done: number }[] = []
  #counts = NO_COUNTS
  #lines = 0

  constructor(stream: NodeJS.WriteStream, colors: Colors, total: number) {
    this.#stream = stream
    this.#colors = colors
    this.#total = total
    this.#stream.write('\x1b[?25l')
  }

  event(text: string): void {
    const seconds = `${((performance.now() - this.#since) / 1_000).toFixed(1).padStart(5)} s`
    // A line that wraps would be two, and the block would not be where it is redrawn.
    const fitting = cut(text, (this.#stream.columns ?? 80) - seconds.length - 5)
    this.#events.push(`${this.#colors.dim(seconds)}  ${fitting}`)
    if (this.#events.length > EVENTS_SHOWN) this.#events.shift()
    this.#draw()
  }

  update(counts: Counts): void {
    this.#counts = counts
    const now = performance.now()
    this.#rates.push({ at: now, done: finished(counts) })
    while (now - this.#rates[0]!.at > RATE_OVER_MS) this.#rates.shift()
    this.#draw()
  }

  end(): void {
    this.#draw()
    this.#stream.write('\x1b[?25h\n')
  }

  #draw(): void {
    const lines = this.#block()
    const up = this.#lines === 0 ? '' : `\x1b[${this.#lines}A`
    this.#lines = lines.length
    // One write, and each line cleared behind its text: nothing flickers.
    this.#stream.write(`${up}\r${lines.map(line => `${line}\x1b[K\n`).join('')}\x1b[J`)
  }

  #block(): string[] {
    const { bold, cyan, dim, gray, green, magenta, red, yellow } = this.#colors
    const { PENDING, PROCESSING, RETRYING, SUCCESS, FAILED, CANCELLED } = this.#counts
    const done = finished(this.#counts)
    const width = Math.max(10, Math.min(50, (this.#stream.columns ?? 80) - 30))
    const count = (value: number) => String(value).padStart(5)
    return [
      '',
      `  ${bar(done / this.#total, width)} ${bold(`${done}/${this.#total}`)}  ${dim(`${this.#rate().toFixed(1)}/s`)}`,
      '',
      `  ${yellow('waiting   ')}${count(PENDING)}    ${green('succeeded ')}${count(SUCCESS)}`,
      `  ${cyan('working   ')}${count(PROCESSING)}    ${red('failed    ')}${count(FAILED)}`,
      `  ${magenta('retrying  ')}${count(RETRYING)}    ${gray('cancelled ')}${count(CANCELLED)}`,
      '',
      ...this.#events.map(event => `  ${event}`),
    ]
  }

  #rate(): number {
    const [first, last] = [this.#rates[0], this.#rates.at(-1)]
    if (!first || !last || last.at === first.at) return 0
    return ((last.done - first.done) * 1_000) / (last.at - first.at)
  }
}

class PlainDisplay implements Display {
  readonly #stream: NodeJS.WriteStream
  readonly #total: number
  readonly #since = performance.now()
  #writtenAt = Number.NEGATIVE_INFINITY

  constructor(stream: NodeJS.WriteStream, total: number) {
    this.#stream = stream
    this.#total = total
  }

  event(text: string): void {
    this.#line(text)
  }

  update(counts: Counts): void {
    if (performance.now() - this.#writtenAt < PLAIN_EVERY_MS) return
    this.#writtenAt = performance.now()
    const { PENDING, PROCESSING, RETRYING, SUCCESS, FAILED, CANCELLED } = counts
    this.#line(
      `${finished(counts)}/${this.#total}: waiting ${PENDING}, working ${PROCESSING}, retrying ${RETRYING}, ` +
        `succeeded ${SUCCESS}, failed ${FAILED}, cancelled ${CANCELLED}`,
    )
  }

  end(): void {}

  #line(text: string): void {
    const seconds = ((performance.now() - this.#since) / 1_000).toFixed(1).padStart(5)
    this.#stream.write(`${seconds} s  ${text}\n`)
  }
}
