/** What clients and workers were answered, and what they may hold the service to. */
import { hash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Act, Payload, PlannedTask } from './plan.ts'

/** What a worker writes down, one line of JSON each. */
export type WorkerAnswer =
  | { of: 'claim'; worker: string; taskId: string; attempt: number; digest: string }
  | {
      of: 'report'
      taskId: string
      attempt: number
      commandId: string
      trigger: string
      /** accepted, repeated, or the code of a refusal. */
      said: string
      revision: number | null
    }
  | { of: 'heartbeat'; taskId: string; said: string }
  /** The service has answered that the attempt is the worker's. */
  | { of: 'start'; worker: string; taskId: string; attempt: number }
  /** A handler was given the task; `answered`: not before the service had answered its START. */
  | { of: 'begun'; worker: string; taskId: string; attempt: number; digest: string; answered: boolean }
  /** The broker has taken what the worker says of its task. */
  | {
      of: 'record'
      taskId: string
      attempt: number
      commandId: string
      trigger: string
      leaseTokenHash: string
    }

/** A task, as its client knows it. */
export interface SubmittedTask {
  planned: PlannedTask
  /** Null while no answer came: then the task may exist or not. */
  taskId: string | null
}

/** A state of a task that was shown to a client: its stream must have been there. */
export interface Seen {
  taskId: string
  status: string
  revision: number
  hash: string
}

export interface ActAnswer {
  taskId: string
  act: Act
  /** accepted, the code of a refusal, or null where none came. */
  said: string | null
  /** How often it was sent. */
  sent: number
  /** When the answer came, in milliseconds since 1970. */
  at: number
}

export interface ClientAnswers {
  tasks: SubmittedTask[]
  seen: Seen[]
  acts: ActAnswer[]
  /** Answers no client can make sense of: neither a success, nor a refusal to be expected, nor "ask again". */
  strange: string[]
}

/** The text of a note, by which it is found again. */
export const noteOf = (act: Act): string => `note of ${act.commandId}`

/** Of anything, of what is not there too. */
export const digestOf = (payload: unknown): string => hash('sha256', JSON.stringify(payload) ?? '')

/** What a program that succeeds returns; recomputed when the streams are examined. */
export const resultOf = (payload: Payload) => ({
  number: payload.number,
  digest: digestOf(payload),
  text: payload.text,
})

/** The lines of a worker's file; one that was cut off by a SIGKILL says nothing. */
export function readWorkerAnswers(path: string): WorkerAnswer[] {
  return readFileSync(path, 'utf8')
    .split('\n')
    .flatMap(line => {
      try {
        return line === '' ? [] : [JSON.parse(line) as WorkerAnswer]
      } catch {
        return []
      }
    })
}
