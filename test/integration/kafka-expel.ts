/**
 * Takes members out of a consumer group, as an operator's tool does. A member that was killed is waited for as long as
 * its session lasts, 15 s each time; tests that kill many have no time for that.
 */
import { once } from 'node:events'
import { connect } from 'node:net'
import type { Admin } from 'kafkajs'

const LEAVE_GROUP = 13

/** Takes out all that the group has now. */
export async function expelMembers(admin: Admin, port: number, group: string): Promise<void> {
  const { groups } = await admin.describeGroups([group])
  for (const { memberId } of groups[0]?.members ?? []) await leaveFor(port, group, memberId)
}

/** Asks in the member's name, by LeaveGroup in its version 0, which the client does not offer. */
async function leaveFor(port: number, group: string, member: string): Promise<void> {
  const header = Buffer.alloc(8)
  header.writeInt16BE(LEAVE_GROUP, 0)
  const request = Buffer.concat([header, text('expel'), text(group), text(member)])
  const length = Buffer.alloc(4)
  length.writeInt32BE(request.length)
  const socket = connect(port, '127.0.0.1')
  socket.write(Buffer.concat([length, request]))
  const [answer] = (await once(socket, 'data')) as [Buffer]
  socket.destroy()
  const code = answer.readInt16BE(8)
  if (code !== 0) throw new Error(`member ${member} could not be taken out of ${group}: error ${code}`)
}

function text(value: string): Buffer {
  const length = Buffer.alloc(2)
  length.writeInt16BE(Buffer.byteLength(value))
  return Buffer.concat([length, Buffer.from(value)])
}
