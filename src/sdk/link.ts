/**
 * What ties a worker to the service: where its tasks come from, and where its reports and heartbeats go. There is one
 * over HTTP and one over Kafka; a worker and its handlers are the same with either.
 */
import type { Beat, BeatResult, ClaimedTask, ReportResult } from '../api/schemas/workers.ts'

/** What a source of tasks needs of its worker. */
export interface SourcePort {
  /** How many tasks may come now; 0 while the worker is full or its reports pile up. */
  room(): number
  /** Tasks that are this worker's now. `heldAt`: since when their leases run, at the least. */
  take(tasks: readonly ClaimedTask[], leaseToken: string, heldAt: number): void
  /** Messages that were passed by, because their tasks are not this worker's to do. */
  skipped(count: number): void
}

export interface TaskSource {
  /** Takes tasks until it is stopped. Never rejects; ends soon after the stop, when nothing more can come. */
  run(): Promise<void>
  /** There may be room again. */
  wake(): void
  /** Takes no more; safe to call twice. */
  stop(): void
}

/** A report about a task, written as JSON without its worker's name; what is sent again is the same. */
export interface Report {
  taskId: string
  json: string
}

/** `sent`: the broker has it; what the log makes of it nobody hears. */
export type Delivered =
  | ReportResult
  /** Also where the whole request was refused, with whatever code. */
  | { taskId: null; kind: 'refused'; code: string; message: string }
  | { kind: 'sent' }

export interface Link {
  source(port: SourcePort): TaskSource
  /**
   * Sends reports, and answers each in its place. Rejects when the outcome is not known, and with a RollcallError of
   * a status of 400, 413 or 422 when they can never be taken as they are.
   */
  report(reports: readonly Report[], signal: AbortSignal): Promise<Delivered[]>
  /** Sends heartbeats; what is not answered goes on. */
  beat(beats: readonly Beat[], timeoutMs: number, signal: AbortSignal): Promise<BeatResult[]>
  /** Ends connections, in bounded time. Never rejects. */
  close(): Promise<void>
}
