/** The client where there is no Node: browsers, and whatever has `fetch`. */
import type { Client, ClientOptions } from './client-api.ts'
import { makeClient } from './make-client.ts'
import { fetchTransport, globalFetch } from './transport.ts'

export type * from './client-types.ts'
export { RollcallError } from './errors.ts'

/** A browser has six connections to a service over HTTP/1.1, for all tabs together; streams take some of them. */
const MAX_WAITS = 2

/** Makes a client. Throws a TypeError for options that cannot be meant; it connects when first asked. */
export const createClient = (options: ClientOptions): Client =>
  makeClient(options, { transport: () => fetchTransport(globalFetch), maxWaits: MAX_WAITS })
