/** The catalogue of refusals: a command answered no. Codes are stable; messages may be reworded. */
export const REFUSALS = {
  not_found: 'No task has this id.',
  illegal_transition: 'The task is in a status that does not answer this trigger.',
  task_finished: 'The task is finished; its outcome stands.',
  already_started: 'Another worker has started this attempt.',
  not_due: 'It is too early: the date this command waits for has not come.',
  stale_attempt: 'The attempt is over; a later one has taken its place.',
  unknown_attempt: 'The task has not reached this attempt yet.',
  not_lease_holder: 'The lease token is not the one this attempt was started with.',
  superseded: 'The result came after the attempt had ended; it is kept in the history and changes nothing.',
  step_not_allowed: 'The lifecycle does not allow this step here.',
  too_many_steps: 'The attempt has entered as many steps as are allowed.',
  too_many_notes: 'The task has as many notes as are allowed.',
  release_limit: 'The task was handed back as often as a run allows; finish it or fail it.',
  run_limit: 'The task was retried by hand as often as is allowed; submit a new one.',
  idempotency_key_reused: 'The key was used before with another request.',
  revision_mismatch: 'The task has changed since the revision given in If-Match.',
} as const

export type RefusalCode = keyof typeof REFUSALS

export interface Refusal {
  code: RefusalCode
  /** One sentence with what was wrong in this case; begins with the catalogue's. */
  message: string
}

export function refusal(code: RefusalCode, detail?: string): Refusal {
  return { code, message: detail ? `${REFUSALS[code]} ${detail}` : REFUSALS[code] }
}
