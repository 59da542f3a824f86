/** What a log server of its own is ordered to do wrong. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { SpawnedEventStoreDBDouble } from '../../support/eventstoredb-double/spawn.ts'
import type { LogFaultKind } from './kinds.ts'

/** The second answer comes when the first was handled. */
const SECOND_ANSWER_MS = 20

/** Lets a fault strike; resolves when it is over, or when what is counted has begun to be counted. */
export async function strikeLogServer(
  server: SpawnedEventStoreDBDouble,
  { kind, forMs, amount }: { kind: LogFaultKind; forMs: number; amount: number },
): Promise<void> {
  switch (kind) {
    case 'log_restart':
      await server.order({ do: 'restart', pauseMs: forMs })
      return
    case 'log_stall':
      await server.order({ do: 'stall' })
      await sleep(forMs)
      await server.order({ do: 'resume' })
      return
    case 'log_late':
      await server.order({ do: 'answerLate', ms: amount })
      await sleep(forMs)
      await server.order({ do: 'answerLate', ms: 0 })
      return
    case 'log_lose_acks':
      await server.order({ do: 'loseAcks', count: amount })
      return
    case 'log_timeouts':
      await server.order({ do: 'failAppends', failure: 'timeout', count: amount, store: true })
      return
    case 'log_busy':
      await server.order({ do: 'failAppends', failure: 'server_busy', count: amount })
      return
    case 'log_answers_twice':
      await server.order({ do: 'answerTwice', count: amount, afterMs: SECOND_ANSWER_MS })
      return
    case 'log_drops_subscriptions':
      await server.order({ do: 'dropSubscriptions' })
      return
    case 'log_ends_subscriptions':
      await server.order({ do: 'endSubscriptions' })
      return
    default:
      return kind satisfies never
  }
}

/**
 * Of what is counted nothing is left. In the end followers lose their subscriptions without a word: nothing comes after
 * it that would give them new ones by chance, so they have to notice.
 */
export async function endLogFaults(server: SpawnedEventStoreDBDouble): Promise<void> {
  await server.order({ do: 'restore' })
  await server.order({ do: 'dropSubscriptions' })
}
