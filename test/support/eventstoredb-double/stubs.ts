/**
 * The generated half of the client library, from the server's side. It is CommonJS, so everything comes by the
 * default export.
 */
import gossipGrpcPb from '@eventstore/db-client/generated/gossip_grpc_pb.js'
import gossipPb from '@eventstore/db-client/generated/gossip_pb.js'
import serverFeaturesGrpcPb from '@eventstore/db-client/generated/serverfeatures_grpc_pb.js'
import serverFeaturesPb from '@eventstore/db-client/generated/serverfeatures_pb.js'
import sharedPb from '@eventstore/db-client/generated/shared_pb.js'
import statusPb from '@eventstore/db-client/generated/status_pb.js'
import streamsGrpcPb from '@eventstore/db-client/generated/streams_grpc_pb.js'
import streamsPb from '@eventstore/db-client/generated/streams_pb.js'

export const { StreamsClient: streamsClient, StreamsService } = streamsGrpcPb
export const { GossipService } = gossipGrpcPb
export const { ServerFeaturesService } = serverFeaturesGrpcPb
export const { ClusterInfo, EndPoint, MemberInfo } = gossipPb
export const { SupportedMethod, SupportedMethods } = serverFeaturesPb
export const {
  AppendReq,
  AppendResp,
  BatchAppendReq,
  BatchAppendResp,
  DeleteResp,
  ReadReq,
  ReadResp,
  TombstoneResp,
} = streamsPb
export const {
  AccessDenied,
  AllStreamPosition,
  BadRequest,
  Empty,
  MaximumAppendSizeExceeded,
  StreamDeleted,
  StreamIdentifier,
  Timeout,
  UUID,
  Unknown,
  WrongExpectedVersion,
} = sharedPb
export const { Status } = statusPb

export type { ClusterInfo as ClusterInfoMessage } from '@eventstore/db-client/generated/gossip_pb.js'
export type { SupportedMethods as SupportedMethodsMessage } from '@eventstore/db-client/generated/serverfeatures_pb.js'
export type {
  Empty as EmptyMessage,
  StreamIdentifier as StreamIdentifierMessage,
  UUID as UUIDMessage,
} from '@eventstore/db-client/generated/shared_pb.js'
export type { Status as StatusMessage } from '@eventstore/db-client/generated/status_pb.js'
export type {
  AppendReq as AppendRequest,
  AppendResp as AppendResponse,
  BatchAppendReq as BatchAppendRequest,
  BatchAppendResp as BatchAppendResponse,
  DeleteReq as DeleteRequest,
  DeleteResp as DeleteResponse,
  ReadReq as ReadRequest,
  ReadResp as ReadResponse,
  TombstoneReq as TombstoneRequest,
  TombstoneResp as TombstoneResponse,
} from '@eventstore/db-client/generated/streams_pb.js'
