import kafkajs from 'kafkajs'
import t from 'tap'
import { readCodec, standsFor } from '../../../src/broker/kafka/unreadable.ts'

const { CompressionCodecs, CompressionTypes } = kafkajs
const HEAD_BYTES = 61

readCodec('LZ4', () => {
  throw new TypeError('broken')
})
const decompress = (bytes: Buffer): Promise<Buffer> =>
  CompressionCodecs[CompressionTypes.LZ4]().decompress(bytes)

/** A batch of the version of now: its head, and some bytes. */
function batch({ count, magic = 2, length = 0 }: { count: number; magic?: number; length?: number }): Buffer {
  const whole = Buffer.alloc(HEAD_BYTES + 40, 7)
  whole.writeInt32BE(whole.length - 12 + length, 8)
  whole.writeInt8(magic, 16)
  whole.writeInt32BE(count * 3, 23)
  whole.writeInt32BE(count, 57)
  return whole
}

t.test('K17: as many records come as the batch has, whatever the codec throws', async t => {
  const { length } = await decompress(batch({ count: 3 }).subarray(HEAD_BYTES))
  t.ok(length > 3 * 40)
})

t.test('K17: bytes that are not in a batch are an error, and no record is made up', async t => {
  const wrong = [
    batch({ count: 0 }),
    batch({ count: -1 }),
    batch({ count: 2_000_000 }),
    batch({ count: 1, magic: 1 }),
    batch({ count: 1, length: 1 }),
  ]
  for (const whole of wrong) await t.rejects(decompress(whole.subarray(HEAD_BYTES)), /head of a batch/)
  const alone = Buffer.from(new ArrayBuffer(40))
  await t.rejects(decompress(alone), /do not stand in a batch/)
})

t.test('a message of a producer is itself, whatever its headers', async t => {
  const message = { key: null, value: null, timestamp: '0', attributes: 0, offset: '0' }
  t.equal(standsFor({ ...message, headers: { rollcall_unreadable: 'x' } }), 'itself')
})
