/** Names and places as EventStoreDB has them, and as the port does. */
import type { StoredEvent } from '../event-log.ts'

/**
 * The names in one namespace. Other applications, and other installations of this one, may keep their streams on the same
 * server: `task-` is a name that anyone might think of.
 */
export class Names {
  /** What the names of all our streams begin with, and nobody else's. */
  readonly prefix: string
  /** Where the log says who it is and whether it is sealed. It is no stream of the log's and not followed. */
  readonly identity: string

  constructor(namespace: string) {
    this.prefix = `${namespace}.`
    this.identity = `${namespace}-log`
  }

  there(stream: string): string {
    return this.prefix + stream
  }

  here(name: string): string {
    return name.slice(this.prefix.length)
  }
}

/** Both numbers of a place in `$all`, since a place is both (PITFALLS E9), as unsigned 64 bit in decimal. */
export interface Place {
  commit: string
  prepare: string
}

export const positionOf = ({ commit, prepare }: Place): string => `${commit}/${prepare}`

const POSITION = /^(\d{1,20})\/(\d{1,20})$/

/** The place of a position, null where it is no position of this adapter. */
export function placeOf(position: string): Place | null {
  const [, commit, prepare] = POSITION.exec(position) ?? []
  if (commit === undefined || prepare === undefined) return null
  const known = [commit, prepare].every(number => BigInt(number) < UNKNOWN)
  return known ? { commit, prepare } : null
}

/** What the server gives where it does not know a place. */
const UNKNOWN = 2n ** 64n - 1n

/** Whether one position lies after another. Numbers, since as texts '9' comes after '10' (PITFALLS E10). */
export function isAfter(one: Pick<StoredEvent, 'position'>, other: Pick<StoredEvent, 'position'>): boolean {
  const [a, b] = [placeOf(one.position), placeOf(other.position)]
  if (!a || !b) return false
  const [commitA, commitB] = [BigInt(a.commit), BigInt(b.commit)]
  return commitA === commitB ? BigInt(a.prepare) > BigInt(b.prepare) : commitA > commitB
}
