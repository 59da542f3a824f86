/** TLS, users and passwords, on a double that asks for them. */
import t, { type Test } from 'tap'
import { selfSigned } from '../../support/certificate.ts'
import { anAppend, wholeStream } from '../../support/events.ts'
import { startEventStoreDBDouble } from '../../support/eventstoredb-double/double.ts'
import { recordingLogger } from '../../support/service-parts.ts'
import { openAt } from './open.ts'

const PASSWORD = 'p@ss:w0rd/%&?'

async function secured(t: Test) {
  const { caFile, ...tls } = await selfSigned(t)
  const double = await startEventStoreDBDouble(t, {
    tls,
    users: { rollcall: PASSWORD },
    host: 'localhost',
  })
  return { double, caFile: encodeURIComponent(caFile) }
}

t.test('with the right authority, user and password it works', async t => {
  const { double, caFile } = await secured(t)
  const login = `rollcall:${encodeURIComponent(PASSWORD)}`
  const log = openAt(t, `esdb://${login}@localhost:${double.port}?tlsCaFile=${caFile}`)
  const append = anAppend()
  t.match(await log.appendMany([append]), [{ kind: 'appended' }])
  t.equal((await wholeStream(log, append.stream)).length, 1)
})

t.test(
  'a wrong password, no password, a wrong authority: refused with what to do, and no secret told',
  async t => {
    const { double, caFile } = await secured(t)
    const at = `localhost:${double.port}`
    const cases: [string, string, RegExp][] = [
      [
        'a wrong password',
        `esdb://rollcall:secret1@${at}?tlsCaFile=${caFile}`,
        /denies access; check the user/,
      ],
      ['no password', `esdb://${at}?tlsCaFile=${caFile}`, /denies access; check the user/],
      ['an authority nobody knows', `esdb://rollcall:secret1@${at}`, /certificate|self.signed/i],
    ]
    for (const [title, address, message] of cases) {
      const { logger, lines } = recordingLogger()
      const log = openAt(t, address, { logger })
      const error = await log.appendMany([anAppend()]).catch((error: Error) => error)
      t.match(error, { code: 'log_unavailable', message }, title)
      const said = JSON.stringify(lines) + String((error as Error).stack) + String((error as Error).cause)
      t.notMatch(said, /secret1/, `${title}: the password is in no log`)
      await log.close()
    }
  },
)
