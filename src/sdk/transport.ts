/** How bytes go to the service and come back: `fetch` anywhere, `node:http` (node-transport.ts) where Node runs. */

export interface TransportRequest {
  method: 'GET' | 'POST'
  url: string
  headers: Record<string, string>
  body: string | null
  signal: AbortSignal
  /** The service may take its time with the answer: it must not keep other calls from their connections. */
  waits?: boolean
}

export interface TransportAnswer {
  status: number
  contentType: string
  retryAfter: string | null
  etag: string | null
  preferenceApplied: string | null
  body: string
}

/** One request, one whole answer. It rejects when no whole answer came; a refusal is an answer. */
export type Transport = (request: TransportRequest) => Promise<TransportAnswer>

/**
 * What holds for every `fetch`. A redirect would turn a POST into a GET or send it, and the key, somewhere else; it is
 * an error of configuration. A browser's cache would add an If-None-Match of its own, which changes what is asked.
 */
export const FETCH_OPTIONS = { redirect: 'error', cache: 'no-store' } as const

/** Over a `fetch`: the browser's, or one that was given. */
export function fetchTransport(fetchFunction: typeof fetch): Transport {
  return async ({ method, url, headers, body, signal }) => {
    const response = await fetchFunction(url, { method, headers, body, signal, ...FETCH_OPTIONS })
    return answerOf(response, await response.text())
  }
}

/** A response to a fetch, with its text, as the answer of a transport. */
export function answerOf({ status, headers }: Response, body: string): TransportAnswer {
  return {
    status,
    contentType: headers.get('content-type') ?? '',
    retryAfter: headers.get('retry-after'),
    etag: headers.get('etag'),
    preferenceApplied: headers.get('preference-applied'),
    body,
  }
}

/** The `fetch` of the place, looked up at each call: a page may replace it. */
export const globalFetch: typeof fetch = (...request) => globalThis.fetch(...request)
