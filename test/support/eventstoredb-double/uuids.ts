/** UUIDs as the protocol carries them: as text, or as two signed halves. */
import { UUID, type UUIDMessage } from './stubs.ts'

const CANONICAL = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/
const EMPTY = '00000000-0000-0000-0000-000000000000'

/** @throws RangeError when it is missing, empty or no UUID */
export function readUUID(message: UUIDMessage | undefined): string {
  const id = message?.hasStructured() ? joined(message) : (message?.getString().toLowerCase() ?? '')
  if (!CANONICAL.test(id)) throw new RangeError('Unrecognized Guid format.')
  if (id === EMPTY) throw new RangeError('Empty eventId provided.')
  return id
}

export function writeUUID(id: string, structured: boolean): UUIDMessage {
  const message = new UUID()
  if (!structured) {
    message.setString(id)
    return message
  }
  const halves = new UUID.Structured()
  const hex = id.replaceAll('-', '')
  halves.setMostSignificantBits(signed(hex.slice(0, 16)))
  halves.setLeastSignificantBits(signed(hex.slice(16)))
  message.setStructured(halves)
  return message
}

function joined(message: UUIDMessage): string {
  const halves = message.getStructured()!
  const hex = [halves.getMostSignificantBits(), halves.getLeastSignificantBits()]
    .map(half => BigInt.asUintN(64, BigInt(half)).toString(16).padStart(16, '0'))
    .join('')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}

const signed = (hex: string): string => BigInt.asIntN(64, BigInt(`0x${hex}`)).toString()
