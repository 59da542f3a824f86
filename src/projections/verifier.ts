/**
 * Promise 4, checked all the time at a low rate by the process that projects: what differs is kept in
 * `rollcall.drift`, told once at error, and looked at again first.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { LogWentBackwardsError } from '../eventlog/event-log.ts'
import { driftingTasks, keepFindings, loadPlace, savePlace } from './drift.ts'
import { examineTasks, type Source } from './examine.ts'
import { FINDING_KINDS, type Finding } from './findings.ts'
import { labelRows } from './unlabelled.ts'
import { NotProjectedError, UnknownPlaceError, walkOn } from './verify.ts'

export interface VerifierOptions extends Source {
  logger: Logger
  /** Whether it is this process's turn: its projector projects. */
  active: () => boolean
  /** Rows compared with their streams; default 50, about 1 % of a core. */
  rowsPerSecond?: number
  /** Between two steps; default 1,000. */
  intervalMs?: number
  /** Between two walks; default 60,000. */
  restMs?: number
}

/** Comparing a task with its stream takes about 0.2 ms; a million tasks are through in under six hours. */
const ROWS_PER_SECOND = 50
/** Of the log, in each step. */
const EVENTS = 1_000
/** Tasks that were found to differ, looked at again in each step. */
const AGAIN_MAX = 20
/** New findings that get a line of their own in the log; the others are counted. */
const TOLD_MAX = 20
const PAUSE_AFTER_FAILURE = 10
/** Rows that wait for their labels after an upgrade, in each step: a million are through in an hour and a half. */
const LABELLED = 200

export class Verifier {
  readonly #options: VerifierOptions
  readonly #intervalMs: number
  readonly #rows: number
  #abort = new AbortController()
  #running: Promise<void> | null = null
  #restUntil = 0
  /** The last row that got its labels. */
  #labelledTo: string | null = null

  constructor(options: VerifierOptions) {
    this.#options = options
    this.#intervalMs = options.intervalMs ?? 1_000
    this.#rows = Math.max(
      1,
      Math.round(((options.rowsPerSecond ?? ROWS_PER_SECOND) * this.#intervalMs) / 1_000),
    )
  }

  start(): void {
    if (this.#running) return
    this.#abort = new AbortController()
    this.#running = this.#run(this.#abort.signal).finally(() => {
      this.#running = null
    })
  }

  async stop(): Promise<void> {
    this.#abort.abort()
    await this.#running
  }

  async #run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      let pauseMs = this.#intervalMs
      if (this.#options.active())
        try {
          await this.#step()
        } catch (error) {
          await this.#recover(error)
          pauseMs *= PAUSE_AFTER_FAILURE
        }
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
    }
  }

  async #step(): Promise<void> {
    const { pool } = this.#options
    this.#labelledTo = await labelRows(this.#options, this.#labelledTo, LABELLED)
    const again = await driftingTasks(pool, AGAIN_MAX)
    if (again.length > 0)
      this.#tell(await keepFindings(pool, await examineTasks(this.#options, again), FINDING_KINDS))
    if (performance.now() < this.#restUntil) return
    const walked = await walkOn(this.#options, await loadPlace(pool), { rows: this.#rows, events: EVENTS })
    await savePlace(pool, walked.next)
    this.#tell(walked.fresh)
    if (walked.next === null) this.#restUntil = performance.now() + (this.#options.restMs ?? 60_000)
  }

  async #recover(error: unknown): Promise<void> {
    const { pool, logger } = this.#options
    if (error instanceof NotProjectedError) return
    // The place is of another log, or of one that was restored: a new walk is to begin.
    if (error instanceof LogWentBackwardsError || error instanceof UnknownPlaceError)
      await savePlace(pool, null).catch(() => {})
    logger.warn({ err: error }, 'verifying failed, trying again later')
  }

  #tell(fresh: readonly Finding[]): void {
    const { logger } = this.#options
    for (const { taskId, kind, detail } of fresh.slice(0, TOLD_MAX))
      logger.error({ taskId, kind, detail }, 'the read model differs from the stream')
    if (fresh.length > TOLD_MAX)
      logger.error({ findings: fresh.length }, 'the read model differs from the streams of many tasks')
  }
}
