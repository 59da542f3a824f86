/** The types that `rollcall/client` exports. */
export type {
  DeadLetterList,
  DeadLetterView,
  DiscardAnswer,
  RedriveAnswer,
} from '../api/schemas/dead-letters.ts'
export type { CreatedKey, KeyList, KeyView, NewKeyRequest } from '../api/schemas/keys.ts'
export type { CountsAnswer } from '../api/schemas/lists.ts'
export type { Refusal, TaskRefusals } from '../api/schemas/refusals.ts'
export type { RollCallAnswer, VerifyAnswer, VerifyRequest } from '../api/schemas/roll-call.ts'
export type {
  BatchAnswer,
  History,
  HistoryEvent,
  TaskList,
  TaskRow,
  TaskView,
} from '../api/schemas/tasks.ts'
export type * from './client-api.ts'
export type { FieldError } from './errors.ts'
export type * from './stream-api.ts'
