/** docs/api.md against a real service: every request in it is sent, and every answer is as it says. */
import { readFileSync } from 'node:fs'
import { STATUS_CODES } from 'node:http'
import t from 'tap'
import { openSse } from '../support/sse.ts'
import { type Answer, registeredRoutes, startApi } from './fixture.ts'

const page = readFileSync(new URL('../../docs/api.md', import.meta.url), 'utf8')

interface Message {
  first: string
  headers: Record<string, string>
  body: string
}

/** The blocks of the page, requests and answers by turns. */
const messages: Message[] = [...page.matchAll(/^```http\n([\s\S]*?)\n```$/gm)].map(([, block]) => {
  const [head = '', ...rest] = block!.split('\n\n')
  const [first = '', ...fields] = head.split('\n')
  const headers = Object.fromEntries(
    fields.map(field => {
      const colon = field.indexOf(':')
      return [field.slice(0, colon).toLowerCase(), field.slice(colon + 1).trim()]
    }),
  )
  return { first, headers, body: rest.join('\n\n') }
})

const UUID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g
const TIME = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z/g
const HASH = /\b[0-9a-f]{64}\b/g
const KEY = /rck_[0-9a-f]{16}_[0-9a-f]{64}/g
const KEY_ID = /"[0-9a-f]{16}"/g
/** What is never the same twice, by its kind; ids are told apart by the service's own. */
const masked = (text: string): string =>
  text.replace(KEY, '<key>').replace(TIME, '<time>').replace(HASH, '<hash>').replace(KEY_ID, '"<key id>"')

t.test('every example is answered as it is documented', async t => {
  const { api } = await startApi(t)
  /** The service's ids for those of the page. */
  const real = new Map<string, string>()
  const withRealIds = (text: string): string => text.replace(UUID, id => real.get(id) ?? id)
  /** Learns ids at the places where the page names one for the first time. */
  const learn = (documented: unknown, answered: unknown): void => {
    if (typeof documented === 'string' && typeof answered === 'string') {
      if (documented.match(UUID)?.[0] === documented && !real.has(documented)) real.set(documented, answered)
    } else if (documented && answered && typeof documented === 'object' && typeof answered === 'object')
      for (const [key, value] of Object.entries(documented))
        learn(value, (answered as Record<string, unknown>)[key])
  }
  const differs = (documented: Message, answer: Answer<unknown>): { is: unknown; should: unknown } | null => {
    const body = documented.body ? JSON.parse(documented.body) : null
    learn(body, answer.body)
    const is = {
      first: `HTTP/1.1 ${answer.status} ${STATUS_CODES[answer.status]}`,
      headers: Object.fromEntries(
        Object.keys(documented.headers).map(name => [name, String(answer.headers[name]).split(';')[0]]),
      ),
      body: body && JSON.parse(masked(answer.text)),
    }
    const should = {
      first: documented.first,
      headers: JSON.parse(withRealIds(JSON.stringify(documented.headers))),
      body: body && JSON.parse(masked(withRealIds(documented.body))),
    }
    return JSON.stringify(is) === JSON.stringify(should) ? null : { is, should }
  }

  t.ok(messages.length > 20 && messages.length % 2 === 0, 'the page was read')
  for (let at = 0; at < messages.length; at += 2) {
    const [request, documented] = [messages[at]!, messages[at + 1]!]
    const [method = '', path = ''] = request.first.split(' ')
    const sent = { headers: request.headers, ...(request.body && { body: withRealIds(request.body) }) }
    const until = performance.now() + 10_000
    let wrong: ReturnType<typeof differs>
    do {
      // The head of a stream is its answer: some have no end.
      const isStream = /event-stream/.test(documented.headers['content-type'] ?? '')
      const answer = isStream
        ? await openSse(t, api.url + withRealIds(path), request.headers)
        : await api.ask(method, withRealIds(path), sent)
      wrong = differs(documented, { text: '', body: null, ...answer })
      // Lists, refusals and the roll call follow within moments; everything else is right at once.
    } while (
      wrong &&
      /^\/v1\/(rollcall$|verify$|tasks(\/counts)?(\?|\/[^/]+\/refusals$))/.test(path) &&
      performance.now() < until
    )
    t.strictSame(wrong?.is, wrong?.should, request.first)
  }
})

t.test('every route is documented, and shown by an example', async t => {
  const listed = [...page.matchAll(/^\| `((?:GET|POST) \S+)` \|/gm)].map(([, route]) => route!)
  const routes = await registeredRoutes()
  t.strictSame(listed.toSorted(), routes)
  const shown = messages
    .filter(({ first }) => !first.startsWith('HTTP/'))
    .map(({ first }) =>
      first.replace(UUID, ':id').replace('/keys/billing/', '/keys/:id/').replace(/\?.*/, ''),
    )
  t.strictSame([...new Set(shown)].sort(), routes)
})

t.test('every link inside the page leads somewhere', async t => {
  const anchors = new Set(
    [...page.matchAll(/^## (.+)$/gm)].map(([, title]) =>
      title!
        .toLowerCase()
        .replace(/[^a-z0-9 ]/g, '')
        .replaceAll(' ', '-'),
    ),
  )
  for (const [, anchor] of page.matchAll(/\]\(#([^)]+)\)/g)) t.ok(anchors.has(anchor!), `#${anchor}`)
})
