/** Records that nobody can handle, made from those that somebody could. */
import { randomBytes, randomUUID } from 'node:crypto'
import type { IncomingRecord } from '../../../src/broker/broker.ts'
import type { Random } from './random.ts'

export interface Garbage {
  key: Buffer | null
  value: Buffer | null
  /** A name may have several values. */
  headers: Record<string, Buffer | Buffer[]>
}

/** By this header it is known again, also where it came a second time. */
export const GARBAGE_HEADER = 'faults-garbage'

type Spoil = (record: IncomingRecord, event: Record<string, unknown>) => Pick<Garbage, 'key' | 'value'>

const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value))
/** The same event with other fields. */
const changed =
  (change: Record<string, unknown>): Spoil =>
  ({ key }, event) => ({ key, value: json({ ...event, ...change }) })
/** Other bytes under the same key. */
const bytes =
  (value: () => Buffer | null): Spoil =>
  ({ key }) => ({ key, value: value() })

/** What can be wrong with a worker event. Its task is a real one: that must not feel anything of it. */
const EVENT_SPOILS: readonly Spoil[] = [
  ({ value }) => ({ key: null, value }),
  ({ value }) => ({ key: Buffer.alloc(0), value }),
  ({ value }) => ({ key: Buffer.from(randomUUID()), value }),
  ({ key, value }) => ({ key, value: value!.subarray(0, -1) }),
  bytes(() => null),
  bytes(() => Buffer.alloc(0)),
  bytes(() => Buffer.from('{')),
  bytes(() => Buffer.from('null')),
  bytes(() => Buffer.alloc(300_000, '[')),
  bytes(() => randomBytes(200)),
  changed({ taskId: 7 }),
  changed({ attempt: '1' }),
  changed({ attempt: 9_007_199_254_740_991 }),
  changed({ trigger: 'EXPLODE' }),
  changed({ leaseToken: '' }),
  changed({ surplus: true }),
  changed({ worker: 'lone \ud800 one \u0000' }),
  ({ key }, event) => ({ key, value: Buffer.from(JSON.stringify(event).replace('{', '{"__proto__":{},')) }),
  // Of a task that nobody knows. A heartbeat of such a one is heard by nobody, and is no dead letter.
  (_, { worker, attempt, leaseToken, commandId }) => {
    const taskId = randomUUID()
    const event = { trigger: 'START', taskId, worker, attempt, leaseToken, commandId }
    return { key: Buffer.from(taskId), value: json(event) }
  },
]

/** What can be wrong with the message of a task: a worker that takes it for one would work on nothing. */
const TASK_SPOILS: readonly Spoil[] = [
  ({ key, value }) => ({ key, value: value!.subarray(0, -1) }),
  bytes(() => null),
  bytes(() => Buffer.alloc(0)),
  bytes(() => Buffer.from('[]')),
  bytes(() => Buffer.alloc(300_000, '[')),
  bytes(() => randomBytes(200)),
  changed({ taskId: 'no id' }),
  changed({ attempt: 'first' }),
]

/** @param record a good one with a value of JSON */
export function garbageOf(of: 'event' | 'task', record: IncomingRecord, id: string, random: Random): Garbage {
  const event = JSON.parse(record.value!.toString('utf8')) as Record<string, unknown>
  const spoil = random.pick(of === 'event' ? EVENT_SPOILS : TASK_SPOILS)
  const headers: Garbage['headers'] = { [GARBAGE_HEADER]: Buffer.from(id), empty: Buffer.alloc(0) }
  if (random.chance(0.5)) headers.twice = [Buffer.from('once'), randomBytes(20)]
  return { ...spoil(record, event), headers }
}
