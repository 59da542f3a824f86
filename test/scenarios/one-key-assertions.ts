import type { Test } from 'tap'
import type { Moment, OneKeyReport } from './one-key.ts'

/** One task, one event, one row, one answer for all; connections that were cut are no answers. */
export function assertOneTask(
  t: Test,
  submits: number,
  deaths: readonly Moment[],
  { statuses, taskIds, cuts, events, submits: stored, rows, seconds }: OneKeyReport,
): void {
  t.comment(`${submits} submits in ${seconds.toFixed(1)} s, ${cuts} sends were cut off`)
  t.equal(taskIds.length, 1, 'every answer names the same task')
  t.equal(stored, 1, 'the log holds one submit')
  t.strictSame(events, ['TaskSubmitted'])
  t.equal(rows, 1)
  const { 200: again = 0, 201: made = 0, ...others } = statuses
  t.strictSame(others, {}, 'nothing else was answered')
  t.equal(again + made, submits, 'everybody was answered')
  // Where the process that made it died before it could say so, nobody was told that it is new.
  const unheard = deaths.some(moment => moment === 'under_way' || moment === 'unanswered')
  t.equal(made, unheard ? 0 : 1)
  if (deaths.length > 0) t.ok(cuts > 0, 'those who died had been asked')
}
