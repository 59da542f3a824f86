/** The client in Node: `rollcall/client`. Elsewhere that name is browser-client.ts, with the same exports. */
import type { Client, ClientOptions } from './client-api.ts'
import { makeClient } from './make-client.ts'
import { MAX_SOCKETS, nodeTransport } from './node-transport.ts'

export type * from './client-types.ts'
export { RollcallError } from './errors.ts'

/** Makes a client. Throws a TypeError for options that cannot be meant; it connects when first asked. */
export const createClient = (options: ClientOptions): Client =>
  makeClient(options, { transport: nodeTransport, maxWaits: MAX_SOCKETS })
