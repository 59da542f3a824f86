/** Faults of a double in a process of its own: one JSON command a line, one JSON answer a line. */
import { z } from 'zod'
import type { EventStoreDBDouble } from './double.ts'

const count = z.int().positive().max(1_000_000)
const ms = z.int().nonnegative().max(600_000)
const position = z.string().regex(/^-?\d{1,19}$/, 'a position in decimal digits')

const command = z.discriminatedUnion('do', [
  z.strictObject({ do: z.literal('loseAcks'), count: count.optional() }),
  z.strictObject({ do: z.literal('stall') }),
  z.strictObject({ do: z.literal('resume') }),
  z.strictObject({ do: z.literal('answerLate'), ms }),
  z.strictObject({ do: z.literal('answerTwice'), count: count.or(z.literal(0)), afterMs: ms.optional() }),
  z.strictObject({
    do: z.literal('failAppends'),
    failure: z.enum(['server_busy', 'server_not_ready', 'timeout', 'access_denied', 'unknown']),
    count: count.optional(),
    store: z.boolean().optional(),
  }),
  z.strictObject({
    do: z.literal('failReads'),
    failure: z.enum(['server_busy', 'server_not_ready', 'timeout', 'unknown']),
    count: count.optional(),
  }),
  z.strictObject({ do: z.literal('cut') }),
  z.strictObject({ do: z.literal('refuse') }),
  z.strictObject({ do: z.literal('accept') }),
  z.strictObject({ do: z.literal('restart'), pauseMs: ms.optional() }),
  z.strictObject({ do: z.literal('dropSubscriptions') }),
  z.strictObject({
    do: z.literal('endSubscriptions'),
    reason: z.enum(['unavailable', 'cancelled', 'end']).optional(),
  }),
  z.strictObject({ do: z.literal('sendCheckpoint'), position: position.optional() }),
  z.strictObject({
    do: z.literal('becomeFollower'),
    leader: z.strictObject({ host: z.string(), port: z.int().min(1).max(65_535) }).nullable(),
  }),
  z.strictObject({ do: z.literal('becomeLeader') }),
  z.strictObject({ do: z.literal('goBackTo'), position }),
  z.strictObject({ do: z.literal('forget') }),
  z.strictObject({ do: z.literal('restore') }),
  z.strictObject({ do: z.literal('describe') }),
])

export type DoubleCommand = z.input<typeof command>

/** What is answered to every command. Positions are decimal digits: they do not fit into JSON's numbers. */
export const doubleAnswer = z.discriminatedUnion('ok', [
  z.strictObject({
    ok: z.literal(true),
    events: z.int(),
    lastPosition: position,
    connections: z.int(),
    subscriptions: z.int(),
  }),
  z.strictObject({ ok: z.literal(false), error: z.string() }),
])

export type DoubleAnswer = z.output<typeof doubleAnswer>
export type DoubleState = Extract<DoubleAnswer, { ok: true }>

/** Carries out a line; never throws. */
export async function obey(double: EventStoreDBDouble, line: string): Promise<DoubleAnswer> {
  try {
    await carryOut(double, command.parse(JSON.parse(line)))
    return {
      ok: true,
      events: double.store.records.length,
      lastPosition: double.store.lastPosition.toString(),
      connections: double.connections,
      subscriptions: double.subscriptions,
    }
  } catch (error) {
    return { ok: false, error: error instanceof z.ZodError ? z.prettifyError(error) : String(error) }
  }
}

async function carryOut(double: EventStoreDBDouble, given: z.output<typeof command>): Promise<unknown> {
  switch (given.do) {
    case 'loseAcks':
      return double.loseAcks(given.count)
    case 'stall':
      return double.stall()
    case 'resume':
      return double.resume()
    case 'answerLate':
      return double.answerLate(given.ms)
    case 'answerTwice':
      return double.answerTwice(given.count, given.afterMs)
    case 'failAppends':
      return double.failAppends(given.failure, { count: given.count, store: given.store })
    case 'failReads':
      return double.failReads(given.failure, { count: given.count })
    case 'cut':
      return double.cut()
    case 'refuse':
      return double.refuse()
    case 'accept':
      return double.accept()
    case 'restart':
      return double.restart(given.pauseMs)
    case 'dropSubscriptions':
      return double.dropSubscriptions()
    case 'endSubscriptions':
      return double.endSubscriptions(given.reason)
    case 'sendCheckpoint':
      return double.sendCheckpoint(given.position === undefined ? undefined : BigInt(given.position))
    case 'becomeFollower':
      return double.becomeFollower(given.leader)
    case 'becomeLeader':
      return double.becomeLeader()
    case 'goBackTo':
      return double.goBackTo(BigInt(given.position))
    case 'forget':
      return double.forget()
    case 'restore':
      return double.restore()
    case 'describe':
      return
    default:
      return given satisfies never
  }
}
