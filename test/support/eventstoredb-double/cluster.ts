/** Gossip and ServerFeatures: what a client asks before it does anything. */
import type { handleUnaryCall } from '@grpc/grpc-js'
import { callErrors } from './errors.ts'
import { authenticate, type NodeState } from './node-state.ts'
import {
  ClusterInfo,
  type ClusterInfoMessage,
  type EmptyMessage,
  EndPoint,
  MemberInfo,
  SupportedMethod,
  SupportedMethods,
  type SupportedMethodsMessage,
} from './stubs.ts'
import { writeUUID } from './uuids.ts'

export const SERVER_VERSION = '24.10.0'

const STREAMS = 'event_store.client.streams.streams'
const METHODS: readonly { service: string; method: string; features: readonly string[] }[] = [
  { service: STREAMS, method: 'read', features: ['position', 'events'] },
  { service: STREAMS, method: 'append', features: [] },
  { service: STREAMS, method: 'batchappend', features: ['deadline_duration'] },
  { service: STREAMS, method: 'delete', features: [] },
  { service: STREAMS, method: 'tombstone', features: [] },
  { service: 'event_store.client.gossip.gossip', method: 'read', features: [] },
  {
    service: 'event_store.client.server_features.serverfeatures',
    method: 'getsupportedmethods',
    features: [],
  },
]

export function supportedMethodsHandler(
  node: NodeState,
): handleUnaryCall<EmptyMessage, SupportedMethodsMessage> {
  return (call, callback) =>
    node.faults.whenRunning(() => {
      if (call.cancelled) return
      if (authenticate(node, call.metadata) === 'wrong') return callback(callErrors.unauthenticated())
      const answer = new SupportedMethods()
      answer.setEventStoreServerVersion(SERVER_VERSION)
      for (const { service, method, features } of METHODS) {
        const message = new SupportedMethod()
        message.setServiceName(service)
        message.setMethodName(method)
        message.setFeaturesList([...features])
        answer.addMethods(message)
      }
      callback(null, answer)
    })
}

/** A node as gossip tells of it. */
export interface Member {
  host: string
  port: number
  state: 'leader' | 'follower' | 'unknown'
}

const STATES = { unknown: 2, follower: 6, leader: 8 } as const

export function gossipHandler(
  node: NodeState,
  members: () => readonly Member[],
): handleUnaryCall<EmptyMessage, ClusterInfoMessage> {
  return (call, callback) =>
    node.faults.whenRunning(() => {
      if (call.cancelled) return
      if (authenticate(node, call.metadata) === 'wrong') return callback(callErrors.unauthenticated())
      const answer = new ClusterInfo()
      for (const { host, port, state } of members()) {
        const endPoint = new EndPoint()
        endPoint.setAddress(host)
        endPoint.setPort(port)
        const message = new MemberInfo()
        message.setInstanceId(writeUUID(`00000000-0000-4000-8000-${String(port).padStart(12, '0')}`, true))
        message.setTimeStamp(String(BigInt(Date.now()) * 10_000n))
        message.setState(STATES[state])
        message.setIsAlive(true)
        message.setHttpEndPoint(endPoint)
        answer.addMembers(message)
      }
      callback(null, answer)
    })
}
