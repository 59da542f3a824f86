/**
 * Moves an installation from one log to another while it runs: copies every event, seals the source, copies its tail,
 * compares both and makes the read model follow the target.
 *
 * Steps: the target is sealed (nobody but the copy appends to it) -> rounds of copying and comparing up to the source's
 * head, until little is left -> the source is sealed -> a last round -> the read model's places are moved -> the target
 * is opened. Each can be stopped and begun again: what was copied stays, what was compared is not compared again, and
 * the source is sealed only once everything but its newest events is there and the same.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Pool, PoolClient } from 'pg'
import { appendCopies } from '../eventlog/copy/append-copies.ts'
import { type BrokenChain, Chains } from '../eventlog/copy/chains.ts'
import { CopyError } from '../eventlog/copy/copy-error.ts'
import { findDifference, firstUnlike } from '../eventlog/copy/difference.ts'
import { fingerprint } from '../eventlog/copy/fingerprint.ts'
import { type Patience, patiently } from '../eventlog/copy/patience.ts'
import { isSamePlace, placeOf, walk } from '../eventlog/copy/walk.ts'
import { type Checkpoint, type EventLog, LogWentBackwardsError } from '../eventlog/event-log.ts'
import { type CopyProgress, loadCopy, NOTHING_COPIED, saveCopy } from './log-copies.ts'
import { moveCheckpoints } from './move-checkpoints.ts'

export interface CopyLogOptions {
  from: EventLog
  /** Opened so that it appends past its seal. */
  to: EventLog
  /** The database with the read model; it keeps the progress, too. */
  pool: Pool
  /** Ends the copy at the next event; the same call goes on from there. */
  signal?: AbortSignal
  /** Awaited; what it throws ends the copy. */
  onProgress?: (progress: CopyStep) => Promise<void> | void
  /** How long a log may not answer. */
  patienceMs?: number
}

export interface CopyStep {
  step: 'copying' | 'comparing' | 'sealing' | 'sealed' | 'moving' | 'moved' | 'opened'
  /** Events that are in the target and were in the source, as far as this and earlier runs have come. */
  events: number
  /** Events of the source that are left; null for more than `LEFT_MAX`. */
  left: number | null
}

export interface Copied {
  sourceId: string
  targetId: string
  /** Events that were copied in all. */
  events: number
  /** Events that this run compared, byte by byte. */
  compared: number
  chains: { links: number; broken: number; named: readonly BrokenChain[] }
  /** Projectors that follow the target now. */
  projectors: string[]
  /** Milliseconds in which no log took commands. */
  sealedMs: number
  /** An earlier run had moved everything already. */
  already: boolean
}

const PATIENCE_MS = 60_000
/** Counting costs EventStoreDB as much as reading. */
const LEFT_MAX = 10_000
/** With fewer events left the source is sealed: they are copied and compared in less than a second. */
const NEAR_EVENTS = 1_000
/** A source that grows about as fast as it is copied is sealed all the same: the next round would not be shorter. */
const SHORTER = 0.8
/** Looked at before a log that may be somebody else's is sealed. */
const FIRST_EVENTS = 1_000

/**
 * Copies the log and moves the read model to it.
 *
 * @throws CopyError, LogUnavailableError, the signal's reason; a later call goes on where this one was
 */
export async function copyLog(options: CopyLogOptions): Promise<Copied> {
  const { pool, signal = new AbortController().signal, patienceMs = PATIENCE_MS } = options
  const lock = await pool.connect()
  // A connection that breaks takes the lock along; two copies at once would do each other no harm, only be slow.
  const onError = () => {}
  lock.on('error', onError)
  try {
    if (!(await takeLock(lock)))
      throw new CopyError('copy_refused', 'another rollcall log copy runs on this database; let it end')
    try {
      return await new Copy(options, { signal, patienceMs }).run()
    } finally {
      await lock.query(`SELECT pg_advisory_unlock(${COPY_LOCK})`).catch(() => {})
    }
  } finally {
    lock.off('error', onError)
    lock.release(true)
  }
}

const COPY_LOCK = '4720155980736210337'
/** The server takes a moment to notice that a copy was killed. */
const LOCK_TRIES = { count: 8, pauseMs: 250 }

async function takeLock(client: PoolClient): Promise<boolean> {
  for (let tries = 0; tries < LOCK_TRIES.count; tries++) {
    if (tries > 0) await sleep(LOCK_TRIES.pauseMs)
    const { rows } = await client.query<{ held: boolean }>(
      `SELECT pg_try_advisory_lock(${COPY_LOCK}) AS held`,
    )
    if (rows[0]?.held) return true
  }
  return false
}

class Copy {
  readonly #options: CopyLogOptions
  readonly #patience: Patience
  readonly #chains: Chains
  #progress: CopyProgress = NOTHING_COPIED
  #compared = 0
  #left: number | null = 0

  constructor(options: CopyLogOptions, patience: Patience) {
    this.#options = options
    this.#patience = patience
    this.#chains = new Chains(options.to, patience)
  }

  async run(): Promise<Copied> {
    const { from, to, pool } = this.#options
    await this.#ask(() => Promise.all([from.head(), to.head()]))
    if (from.id === to.id)
      throw new CopyError('copy_refused', `--from and --to are the same log, ${from.id}: name another one`)
    this.#progress = await loadCopy(pool, from.id, to.id)
    if (await this.#wasMoved()) return this.#result([], 0, true)
    await this.#forgetLostPlaces()
    await this.#closeTarget()
    await this.#approach()
    await this.#tell('sealing')
    const sealingAt = performance.now()
    await this.#ask(() => from.seal(to.id))
    await this.#tell('sealed')
    await this.#round()
    const head = await this.#ask(() => from.head())
    if (!isSamePlace(head, this.#progress.verified?.source ?? null))
      throw new CopyError(
        'copy_differs',
        `log ${from.id} was appended to after it was sealed: run the same command again`,
      )
    await this.#tell('moving')
    const projectors = await moveCheckpoints(
      { from, to, pool, heads: this.#progress.verified, events: this.#progress.events },
      this.#patience,
    )
    await this.#tell('moved')
    await this.#ask(() => to.seal(null))
    const sealedMs = performance.now() - sealingAt
    await this.#tell('opened')
    return this.#result(projectors, sealedMs, false)
  }

  /** What an earlier run left between the move and its end is brought to the end. */
  async #wasMoved(): Promise<boolean> {
    const { from, to, pool } = this.#options
    const [fromSealed, toSealed] = await this.#ask(() => Promise.all([from.sealedFor(), to.sealedFor()]))
    const { rows } = await pool.query<{ log_id: string }>(
      'SELECT DISTINCT log_id FROM rollcall.projectors WHERE log_id IS NOT NULL',
    )
    const ids = rows.map(row => row.log_id)
    const moved = ids.includes(to.id) || (ids.length === 0 && this.#progress.moved)
    if (moved && fromSealed === to.id) {
      if (toSealed === from.id) await this.#ask(() => to.seal(null))
      else if (toSealed !== null) throw this.#sealedElsewhere('target', to.id, toSealed)
      return true
    }
    if (moved)
      throw new CopyError(
        'copy_refused',
        `the read model was made from log ${to.id}, the one to copy to: did you mean to swap --from and --to?`,
      )
    const other = ids.find(id => id !== from.id)
    if (other)
      throw new CopyError(
        'copy_refused',
        `the read model was made from log ${other}, which is neither --from (${from.id}) nor --to (${to.id}): ` +
          'check --database-url, or copy from that log',
      )
    if (fromSealed !== null && fromSealed !== to.id)
      throw this.#sealedElsewhere('source', from.id, fromSealed)
    if (toSealed !== null && toSealed !== from.id) throw this.#sealedElsewhere('target', to.id, toSealed)
    return false
  }

  #sealedElsewhere(which: string, id: string, movedTo: string): CopyError {
    return new CopyError(
      'copy_refused',
      `the ${which} ${id} is sealed for log ${movedTo}: it was moved there, or that copy has not ended`,
    )
  }

  /** A log that was restored from an older copy no longer holds the places; everything is copied and compared again. */
  async #forgetLostPlaces(): Promise<void> {
    const { from, to } = this.#options
    try {
      for (const places of [this.#progress.copied, this.#progress.verified]) {
        if (!places) continue
        await this.#ask(() => from.countAfter(places.source, 1))
        await this.#ask(() => to.countAfter(places.target, 1))
      }
    } catch (error) {
      if (!(error instanceof LogWentBackwardsError)) throw error
      await this.#save({ ...NOTHING_COPIED })
    }
  }

  /** Keeps everyone else from appending to the target, unless it looks like a log that somebody uses. */
  async #closeTarget(): Promise<void> {
    const { from, to } = this.#options
    const head = await this.#ask(() => to.head())
    if (head && !this.#progress.copied) {
      const foreign = await firstUnlike(
        { log: to, after: null, until: await this.#firstPlaces(to, head) },
        from,
        this.#patience,
        'is not in the source',
      )
      if (foreign)
        throw new CopyError(
          'copy_refused',
          `the target ${to.id} is not empty: event ${foreign.revision} of its stream ${foreign.stream} ${foreign.what}. ` +
            'Copy into an empty log: a new namespace, or a new database',
        )
    }
    await this.#ask(() => to.seal(from.id))
  }

  async #firstPlaces(log: EventLog, head: Checkpoint): Promise<Checkpoint> {
    let until = head
    await walk({ log, after: null, until: head }, this.#patience, async batch => {
      until = placeOf(log, batch.slice(0, FIRST_EVENTS).at(-1)!)
      return false
    })
    return until
  }

  /** Rounds until little is left, or no less than before. */
  async #approach(): Promise<void> {
    for (let before = Number.POSITIVE_INFINITY; ; ) {
      const copied = await this.#round()
      if (copied < NEAR_EVENTS || copied > before * SHORTER) return
      before = copied
    }
  }

  /** Copies and compares everything up to the source's head. @returns how many events that was */
  async #round(): Promise<number> {
    const head = await this.#ask(() => this.#options.from.head())
    const before = this.#progress.events
    await this.#copy(head)
    await this.#compare(head)
    return this.#progress.events - before
  }

  async #copy(until: Checkpoint | null): Promise<void> {
    const { from, to } = this.#options
    const after = this.#progress.copied?.source ?? null
    const left = await this.#ask(() => from.countAfter(after, LEFT_MAX))
    this.#left = left < LEFT_MAX ? left : null
    await this.#tell('copying')
    await walk({ log: from, after, until }, this.#patience, async batch => {
      const target = await appendCopies(to, batch, this.#patience)
      const source = placeOf(from, batch.at(-1)!)
      await this.#save({
        ...this.#progress,
        copied: { source, target: target! },
        events: this.#progress.events + batch.length,
      })
      if (this.#left !== null) this.#left = Math.max(0, this.#left - batch.length)
      await this.#tell('copying')
      return true
    })
  }

  /** Compares what came since the last comparison: a stretch of each log, in whatever order. */
  async #compare(until: Checkpoint | null): Promise<void> {
    const { from, to } = this.#options
    const head = await this.#ask(() => to.head())
    const { verified } = this.#progress
    if (isSamePlace(verified?.source ?? null, until) && isSamePlace(verified?.target ?? null, head)) return
    await this.#tell('comparing')
    const source = { log: from, after: verified?.source ?? null, until }
    const target = { log: to, after: verified?.target ?? null, until: head }
    const left = await fingerprint(source, this.#patience)
    const right = await fingerprint(target, this.#patience, (events, hashes) =>
      this.#chains.add(events, hashes),
    )
    if (left.sum !== right.sum || left.events !== right.events) {
      const found = await findDifference(source, target, this.#patience)
      throw new CopyError(
        'copy_differs',
        found
          ? `source and target differ: event ${found.revision} of stream ${found.stream} ${found.what}. Nothing was moved; ` +
              'look who wrote it, and copy into an empty log'
          : `source and target differ: ${left.events} events here, ${right.events} there. Nothing was moved; copy into an ` +
              'empty log',
      )
    }
    this.#compared += left.events
    // Two empty logs are the same without a place.
    if (until && head) await this.#save({ ...this.#progress, verified: { source: until, target: head } })
  }

  #ask<T>(ask: () => Promise<T>): Promise<T> {
    return patiently(this.#patience, ask)
  }

  async #save(progress: CopyProgress): Promise<void> {
    const { from, to, pool } = this.#options
    await saveCopy(pool, from.id, to.id, progress)
    this.#progress = progress
  }

  async #tell(step: CopyStep['step']): Promise<void> {
    await this.#options.onProgress?.({ step, events: this.#progress.events, left: this.#left })
    // After the move only little is left, and it should not be left undone.
    if (step !== 'moved' && step !== 'opened') this.#patience.signal.throwIfAborted()
  }

  #result(projectors: string[], sealedMs: number, already: boolean): Copied {
    const { from, to } = this.#options
    const { links, broken, named } = this.#chains
    return {
      sourceId: from.id,
      targetId: to.id,
      events: this.#progress.events,
      compared: this.#compared,
      chains: { links, broken, named },
      projectors,
      sealedMs: Math.round(sealedMs),
      already,
    }
  }
}
