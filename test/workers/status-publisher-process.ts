/**
 * A publisher of task statuses in a process of its own: `status-publisher-process.ts <url> <brokers> [<batches>]`. After so
 * many batches it kills itself (SIGKILL), with the next one sent and its place not moved.
 */
import pg from 'pg'
import pino from 'pino'
import { openKafkaBroker } from '../../src/broker/kafka/kafka-broker.ts'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { PostgresPlaces } from '../../src/projections/postgres/postgres-places.ts'
import { PostgresStatusDoubts } from '../../src/workers/postgres/status-doubts.ts'
import { StatusPublisher } from '../../src/workers/status-publisher.ts'

const [url, brokers, batches] = process.argv.slice(2)
const logger = pino({ level: 'silent' })
const pool = new pg.Pool({ connectionString: url!, max: 3, options: '-c timezone=UTC -c datestyle=ISO' })
const places = new PostgresPlaces(pool)
let left = Number(batches)
const advance = places.advance.bind(places)
places.advance = async step => {
  if (left-- <= 0) process.kill(process.pid, 'SIGKILL')
  await advance(step)
}
new StatusPublisher({
  log: await openPostgresEventLog({ connectionString: url!, readConnections: 2 }),
  places,
  doubts: new PostgresStatusDoubts(pool),
  broker: openKafkaBroker({ brokers: brokers!.split(','), clientId: 'rollcall-test', logger }),
  clock: { now: Date.now },
  logger,
  leaseMs: 1_000,
  standbyMs: 50,
}).start()
