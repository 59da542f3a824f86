/** The client's log, on ours: bounded, and nothing of what the records hold. */
import { type logCreator, logLevel } from 'kafkajs'
import type { BaseLogger } from 'pino'

/** A record's content is in none of these. */
const KEPT = [
  'groupId',
  'memberId',
  'broker',
  'clientId',
  'topic',
  'partition',
  'error',
  'retryCount',
  'retryTime',
] as const

const MOST_CHARACTERS = 300

/**
 * The client calls a rebalance or a broker that restarts an error, and says everything several times, so what it logs
 * is one level lower here. What matters of it this adapter reports itself.
 */
export function clientLog(logger: BaseLogger): logCreator {
  return () =>
    ({ namespace, level, log }) => {
      const fields: Record<string, string | number> = {}
      for (const name of KEPT) {
        const value: unknown = log[name]
        if (typeof value === 'number') fields[name] = value
        else if (typeof value === 'string') fields[name] = value.slice(0, MOST_CHARACTERS)
      }
      const text = `kafka client, ${namespace}: ${log.message.slice(0, MOST_CHARACTERS)}`
      if (level === logLevel.ERROR) logger.info(fields, text)
      else if (level !== logLevel.NOTHING) logger.debug(fields, text)
    }
}
