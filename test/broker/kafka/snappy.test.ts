import t from 'tap'
import { SnappyError, unsnap } from '../../../src/broker/kafka/snappy.ts'

/** Written by the Java client's own snappy: one block, and the frame of blocks of 1 KiB. */
const BLOCK =
  '9gkkeyJ0YXNrSWQiOgUJPC0wIiwiYXR0ZW1wdCI6MH0+HwAAMS4fAAAxQh8AADIuHwAAMkIfAAAzLh8AADNCHwAANC4fAAA0Qh8AADUuHwAANUIfAAA2Lh8AADZCHwAy2QAAN0IfADLZAAA4Qh8AMtkAADlCHwAy2QAAMUY3ATLaAAAxRjgBMtsAADFGOQEy3AAAMUY6ATLdAAAxRjsBMt4AADFGPAEy3wAAMUY9ATbgAEY+ATbgAEY/ATbgAEZAATLgAAAyRkABMuAAADJGQAEy4AAAMkZAATLgAAAyRkABMuAAADJGQAEy4AAAMkZAATLgAAAyRkABNuAARkABNuAARkABNuAARkABMuAAADNGQAEy4AAAM0ZAATLgAAAzRkABMuAAADNGQAEy4AAAM0ZAATLgAAAzRkABMuAAADNGQAE24ABGQAEAMy78AwAzRkABNuAABDl9'
const FRAMED =
  'glNOQVBQWQAAAAABAAAAAQAAASSACCR7InRhc2tJZCI6BQk8LTAiLCJhdHRlbXB0IjowfT4fAAAxLh8AADFCHwAAMi4fAAAyQh8AADMuHwAAM0IfAAA0Lh8AADRCHwAANS4fAAA1Qh8AADYuHwAANkIfADLZAAA3Qh8AMtkAADhCHwAy2QAAOUIfADLZAAAxRjcBMtoAADFGOAEy2wAAMUY5ATLcAAAxRjoBMt0AADFGOwEy3gAAMUY8ATLfAAAxRj0BNuAARj4BNuAARj8BNuAARkABMuAAADJGQAEy4AAAMkZAATLgAAAyRkABMuAAADJGQAEy4AAAMkZAATLgAAAyRkABMuAAADJGQAE24ABGQAE24ABGQAE24ABGQAEy4AAAM0ZAATLgADAzMX17InRhc2tJZCI6AAAAZ/YBWCJ0YXNrLTQiLCJhdHRlbXB0IjozMn17BRcMSWQiOgUJCC01Ii4gAAAzQiAAADYyIAAANEIgAAAwMiAAADVCIAAAMTIgAAA2QiAAADIyIAAAN0IgAAAzMiAAADhCIAA24AAEOX0='

const TEXT = Array.from({ length: 40 }, (_, i) => `{"taskId":"task-${i % 7}","attempt":${i}}`).join('')

const bytes = (base64: string): Buffer => Buffer.from(base64, 'base64')

t.test('what the Java client wrote is read', async t => {
  t.equal(unsnap(bytes(BLOCK)).toString(), TEXT)
  t.equal(unsnap(bytes(FRAMED)).toString(), TEXT)
  t.equal(unsnap(Buffer.from([0])).length, 0)
})

t.test('anything else is refused, in whatever place it is cut or changed', async t => {
  for (const whole of [bytes(BLOCK), bytes(FRAMED)])
    for (let at = 0; at < whole.length; at++) {
      // Some of these are snappy still, of another text.
      refuses(whole.subarray(0, at))
      refuses(flipped(whole, at))
    }
  t.ok(refuses(bytes(BLOCK).subarray(0, 50)))
  t.ok(refuses(bytes(FRAMED).subarray(0, 50)))
  t.ok(refuses(Buffer.from([0xff, 0xff, 0xff, 0xff, 0x0f, 0])), 'a length of 4 GiB')
  t.ok(refuses(Buffer.from([4, 1, 9])), 'a copy from before the beginning')
})

/** Throws what is not a refusal. */
function refuses(input: Buffer): boolean {
  try {
    unsnap(input)
    return false
  } catch (error) {
    if (error instanceof SnappyError) return true
    throw error
  }
}

function flipped(whole: Buffer, at: number): Buffer {
  const copy = Buffer.from(whole)
  copy[at]! ^= 0xff
  return copy
}
