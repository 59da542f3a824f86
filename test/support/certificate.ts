/** A certificate that tests of TLS trust and nobody else. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import selfsigned from 'selfsigned'
import type { Test } from 'tap'

/** For the host `localhost`; `caFile` is what a client is told to trust. All PEM. */
export async function selfSigned(t: Test): Promise<{ certificate: string; key: string; caFile: string }> {
  const { cert, private: key } = await selfsigned.generate([{ name: 'commonName', value: 'localhost' }], {
    keySize: 2048,
    extensions: [
      { name: 'basicConstraints', cA: true },
      { name: 'subjectAltName', altNames: [{ type: 2, value: 'localhost' }] },
    ],
  })
  const folder = await mkdtemp(join(tmpdir(), 'rollcall-tls-'))
  t.teardown(() => rm(folder, { recursive: true }))
  const caFile = join(folder, 'authority.pem')
  await writeFile(caFile, cert)
  return { certificate: cert, key, caFile }
}
