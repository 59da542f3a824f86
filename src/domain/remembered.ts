/**
 * What a task remembers of a command it took: what it stored, the command's id and, of the commands of people, a digest
 * of what they wrote, so that one id under two texts is found out without keeping the texts.
 */
import type { Command } from './commands.ts'
import type { EventType, TaskEvent } from './events.ts'
import { TRIGGER_EVENTS } from './lifecycle.ts'

/** An id holds no space, so the digest stands behind one. */
function entry(event: EventType, commandId: string, text: string | null): string {
  return text === null ? `${event}:${commandId}` : `${event}:${commandId} ${digest(text)}`
}

/** How the command that led to an event is remembered. */
export function rememberedAs(event: TaskEvent, commandId: string): string {
  return entry(event.type, commandId, textIn(event))
}

/** Whether one of these is this very command, or another one under its id; null where the id is not known. */
export function recall(
  remembered: readonly string[],
  command: Command,
  commandId: string,
): 'same' | 'other' | null {
  const trigger = command.trigger === 'TIMEOUT' ? (`TIMEOUT:${command.timer}` as const) : command.trigger
  if (trigger === 'SUBMIT') return null
  for (const event of TRIGGER_EVENTS[trigger]) {
    const plain = entry(event, commandId, null)
    const found = remembered.findLast(one => one === plain || one.startsWith(`${plain} `))
    if (found !== undefined) return found === entry(event, commandId, textOf(command)) ? 'same' : 'other'
  }
  return null
}

function textIn({ type, data }: TaskEvent): string | null {
  switch (type) {
    case 'TaskNoted':
      return data.content.note
    case 'TaskCancelled':
    case 'TaskRequeued':
      return data.content.reason
    default:
      return null
  }
}

function textOf(command: Command): string | null {
  switch (command.trigger) {
    case 'NOTE':
      return command.note
    case 'CANCEL':
    case 'RETRY':
      return command.reason
    default:
      return null
  }
}

/** 53 bits of a text (cyrb53): tells texts apart, and keeps none secret. */
function digest(text: string): string {
  let high = 0xdeadbeef
  let low = 0x41c6ce57
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at)
    high = Math.imul(high ^ unit, 2654435761)
    low = Math.imul(low ^ unit, 1597334677)
  }
  high = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909)
  low = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(high ^ (high >>> 13), 3266489909)
  return (4294967296 * (0x1fffff & low) + (high >>> 0)).toString(36)
}
