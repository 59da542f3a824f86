/** The guards, each broken on purpose: a simulation that does not notice would be worth nothing. */
import type { CommandEnvelope } from '../../src/domain/commands.ts'
import type { Instant } from '../../src/domain/events.ts'
import type { Task } from '../../src/domain/task.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import type { Heartbeat } from '../../src/workers/work-state.ts'
import { MemoryTables } from './memory-tables.ts'
import type { Broken } from './simulation.ts'

/** Appends wherever the stream is. */
function withoutExpectedRevision(log: EventLog): EventLog {
  const appendMany: EventLog['appendMany'] = async appends => {
    const careless = appends.map(async append => {
      const { events } = await log.readStream(append.stream, 0, 1_000)
      const repeated = events.some(({ id }) => id === append.events[0]?.id)
      return repeated || events.length === 0 ? append : { ...append, expected: events.length - 1 }
    })
    return log.appendMany(await Promise.all(careless))
  }
  return new Proxy(log, {
    get: (target, name) => {
      if (name === 'appendMany') return appendMany
      const member: unknown = Reflect.get(target, name)
      return typeof member === 'function' ? member.bind(target) : member
    },
  })
}

/** Takes every report for one of the current attempt by its holder. */
function withoutFence(asked: CommandEnvelope, task: Task | null): CommandEnvelope {
  const { command } = asked
  if (task?.status !== 'PROCESSING' || !('leaseTokenHash' in command) || command.trigger === 'START')
    return asked
  const { attempt, leaseTokenHash } = task
  return { ...asked, command: { ...command, attempt, leaseTokenHash } }
}

/** Lets a heartbeat hold a lease that was taken as lost. */
class WithoutLost extends MemoryTables {
  override async beat(beats: readonly Heartbeat[]): Promise<Map<string, Instant>> {
    for (const { taskId } of beats) {
      const lease = this.leases.get(taskId)
      if (lease) lease.lost = false
    }
    return super.beat(beats)
  }
}

/** Makes claimable what is handed out already. */
class WithoutOfferMatch extends MemoryTables {
  protected override isOffered(): boolean {
    return false
  }
}

export const BROKEN = {
  fence: { envelope: withoutFence },
  'expected revision': { log: withoutExpectedRevision },
  'lost lease': { tables: now => new WithoutLost(now) },
  'offer match': { tables: now => new WithoutOfferMatch(now) },
} satisfies Record<string, Broken>
