/** The settings of the broker. They are written at each start, so a folder cannot carry stale ones. */

export interface Place {
  port: number
  /** Only the broker itself speaks to it. */
  controllerPort: number
  /** Relative to the working folder: a path of any letters, commas among them, then needs no escaping. */
  logDir: string
  /** More settings of Kafka's; what is given for its lists is added to them. */
  properties?: Readonly<Record<string, string>> | undefined
}

/** Settings that say where the broker listens: without its own entries nothing here would reach it. */
const LISTS: ReadonlySet<string> = new Set([
  'listeners',
  'advertised.listeners',
  'listener.security.protocol.map',
])

/** One node that is broker and controller, on loopback, alone with its partitions. */
export function brokerProperties({ port, controllerPort, logDir, properties = {} }: Place): string {
  const settings: Record<string, string | number | boolean> = {
    'process.roles': 'broker,controller',
    'node.id': 1,
    'controller.quorum.voters': `1@127.0.0.1:${controllerPort}`,
    listeners: `PLAINTEXT://127.0.0.1:${port},CONTROLLER://127.0.0.1:${controllerPort}`,
    'advertised.listeners': `PLAINTEXT://127.0.0.1:${port}`,
    'listener.security.protocol.map': 'PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT',
    'inter.broker.listener.name': 'PLAINTEXT',
    'controller.listener.names': 'CONTROLLER',
    'log.dirs': logDir,
    // The defaults are 3 and 2: on one node no consumer group would ever find its coordinator.
    'offsets.topic.replication.factor': 1,
    'transaction.state.log.replication.factor': 1,
    'transaction.state.log.min.isr': 1,
    'share.coordinator.state.topic.replication.factor': 1,
    'share.coordinator.state.topic.min.isr': 1,
    // Few, since each is made when it is first needed; with one, a group that is answered stands for all.
    'offsets.topic.num.partitions': 1,
    'transaction.state.log.num.partitions': 1,
    'share.coordinator.state.topic.num.partitions': 1,
    // A topic made by a typing error would have the wrong number of partitions for good.
    'auto.create.topics.enable': false,
    // The first member of a group would wait 3 s for others.
    'group.initial.rebalance.delay.ms': 0,
    // The default, 6 s, is the least that tests of sessions would take.
    'group.min.session.timeout.ms': 1_000,
    // The only voter waits for no other: 1.2 s of a start less.
    'controller.quorum.election.timeout.ms': 100,
    'controller.quorum.election.backoff.max.ms': 100,
    'controller.quorum.fetch.timeout.ms': 200,
    // A broker that was killed may register again only when its last session is over; the default is 9 s.
    'broker.session.timeout.ms': 3000,
    'broker.heartbeat.interval.ms': 500,
    // The default, 128 MB, is half of the heap.
    'log.cleaner.dedupe.buffer.size': 8 * 1024 * 1024,
  }
  for (const [name, value] of Object.entries(properties))
    settings[name] = LISTS.has(name) ? `${settings[name]},${value}` : value
  return Object.entries(settings)
    .map(([name, value]) => `${name}=${value}\n`)
    .join('')
}
