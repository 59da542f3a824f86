/** What the calls of a double share: its log, its part in the cluster, who may do what, its faults. */
import type { Metadata } from '@grpc/grpc-js'
import { type CallError, callErrors } from './errors.ts'
import type { Faults } from './faults.ts'
import type { EventStoreDBStore } from './store.ts'

/** A subscription as the faults see it. */
export interface OpenSubscription {
  /** From now on it sends nothing more and does not end. */
  silence(): void
  checkpoint(position: bigint): void
  end(error: CallError | null): void
}

export interface NodeState {
  readonly store: EventStoreDBStore
  readonly faults: Faults
  readonly maxAppendBytes: number
  readonly writeTimeoutMs: number
  /** Names and passwords; null lets everybody do everything. */
  readonly users: Readonly<Record<string, string>> | null
  readonly subscriptions: Set<OpenSubscription>
}

/** Why a call is refused before it is looked at, null where it may go on. */
export function refusal(node: NodeState, headers: Metadata): CallError | null {
  const caller = authenticate(node, headers)
  if (caller === 'wrong') return callErrors.unauthenticated()
  if (caller === 'nobody') return callErrors.accessDenied()
  return notLeader(node, headers)
}

export function notLeader(node: NodeState, headers: Metadata): CallError | null {
  const required = String(headers.get('requires-leader')[0] ?? '').toLowerCase() === 'true'
  return required && node.faults.leader !== 'itself' ? callErrors.notLeader(node.faults.leader) : null
}

/** `nobody` gave no credentials where they are needed. */
export function authenticate(node: NodeState, headers: Metadata): 'somebody' | 'nobody' | 'wrong' {
  if (node.users === null) return 'somebody'
  const header = String(headers.get('authorization')[0] ?? '')
  if (header === '') return 'nobody'
  const [name = '', password] = Buffer.from(header.replace(/^Basic /i, ''), 'base64')
    .toString()
    .split(/:(.*)/s)
  return Object.hasOwn(node.users, name) && node.users[name] === password ? 'somebody' : 'wrong'
}
