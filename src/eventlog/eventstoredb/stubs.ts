/**
 * The generated half of the client library: messages and calls of EventStoreDB's protocol. They are CommonJS, so
 * everything comes by the default export.
 */
import eventstoredb from '@eventstore/db-client'
import sharedPb from '@eventstore/db-client/generated/shared_pb.js'
import streamsGrpcPb from '@eventstore/db-client/generated/streams_grpc_pb.js'
import streamsPb from '@eventstore/db-client/generated/streams_pb.js'

export const { EventStoreDBClient } = eventstoredb
export type { EventStoreDBClient as Client } from '@eventstore/db-client'
export type { StreamsClient } from '@eventstore/db-client/generated/streams_grpc_pb.js'
export const { StreamsClient: streamsClient } = streamsGrpcPb
export const { BatchAppendReq, ReadReq } = streamsPb
export type {
  BatchAppendReq as BatchAppendRequest,
  BatchAppendResp as BatchAppendResponse,
  ReadReq as ReadRequest,
  ReadResp as ReadResponse,
} from '@eventstore/db-client/generated/streams_pb.js'
export const { Empty, MaximumAppendSizeExceeded, StreamIdentifier, UUID } = sharedPb
