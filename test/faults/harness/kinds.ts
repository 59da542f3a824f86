/** The parts of a fault run, the networks between them, and what can be done to them. */

export const SERVICES = ['a', 'b', 'c'] as const
export const WORKERS = ['worker-0', 'worker-1', 'worker-2', 'worker-3'] as const
/** Every network between two parts: a service and its database, the clients and an API, a worker and both APIs. */
export const LINKS = ['db-a', 'db-b', 'db-c', 'front-a', 'front-b', ...WORKERS] as const
/** And those to a log server of its own. */
export const LOG_LINKS = ['log-a', 'log-b', 'log-c'] as const
/** And those to the message broker: of the services that have its roles, and of the workers that it feeds. */
export const KAFKA_LINKS = ['kafka-b', 'kafka-c', 'kafka-worker-2', 'kafka-worker-3'] as const
export const LOGS = ['postgres', 'eventstoredb'] as const
/** Where the log is. */
export type LogKind = (typeof LOGS)[number]
export const BROKERS = ['none', 'kafka'] as const
/** By what workers get their tasks: HTTP alone, or a message broker as well. */
export type BrokerKind = (typeof BROKERS)[number]
export type ServiceName = (typeof SERVICES)[number]
export type WorkerName = (typeof WORKERS)[number]
export type KafkaLinkName = (typeof KAFKA_LINKS)[number]
export type LinkName = (typeof LINKS)[number] | (typeof LOG_LINKS)[number] | KafkaLinkName

export interface FaultKindPlan {
  targets: readonly string[]
  /** How long it lasts, or the time until what was ended is started again. */
  forMs: readonly [number, number]
  /** Answers to lose, milliseconds to delay. */
  amount?: readonly [number, number]
}

const POSTGRES = ['postgres'] as const

/** The longest are longer than any lease: those of tasks are 2 to 5 s, the projector's is 5 s. */
export const FAULT_KINDS = {
  kill_service: { targets: SERVICES, forMs: [100, 5_000] },
  stop_service: { targets: SERVICES, forMs: [1_000, 20_000] },
  kill_worker: { targets: WORKERS, forMs: [100, 5_000] },
  stop_worker: { targets: WORKERS, forMs: [1_000, 20_000] },
  /** An immediate shutdown: its processes end at once, the next start recovers. */
  postgres_quit: { targets: POSTGRES, forMs: [0, 5_000] },
  /** SIGKILL of the postmaster: its children are still there for a moment. */
  postgres_kill: { targets: POSTGRES, forMs: [0, 5_000] },
  /** A fast shutdown, as an operator does it. */
  postgres_restart: { targets: POSTGRES, forMs: [0, 3_000] },
  cut: { targets: LINKS, forMs: [0, 0] },
  /** Half open: no byte passes and nobody is told; what waits arrives late. */
  hold: { targets: LINKS, forMs: [1_000, 12_000] },
  lose_answers: { targets: LINKS, forMs: [1_000, 4_000], amount: [1, 6] },
  slow: { targets: LINKS, forMs: [2_000, 8_000], amount: [20, 400] },
  refuse: { targets: LINKS, forMs: [500, 8_000] },
} as const satisfies Record<string, FaultKindPlan>

const LOG_SERVER = ['eventstoredb'] as const
/** What a log server does beyond what its links do. Its double keeps the log in memory, so it is never killed. */
export const LOG_FAULT_KINDS = {
  /** Every call and connection dies, and what only memory held is forgotten. */
  log_restart: { targets: LOG_SERVER, forMs: [0, 5_000] },
  /**
   * Requests are taken and neither stored nor answered until it goes on. Always for longer than an append waits: what was
   * given up meanwhile is never stored, and a service that takes the silence for success loses it.
   */
  log_stall: { targets: LOG_SERVER, forMs: [3_500, 9_000] },
  log_lose_acks: { targets: LOG_SERVER, forMs: [0, 0], amount: [1, 20] },
  /** Answers come so many milliseconds later; appends are given up after 3,000. */
  log_late: { targets: LOG_SERVER, forMs: [1_000, 6_000], amount: [100, 4_000] },
  /** Stored all the same. */
  log_timeouts: { targets: LOG_SERVER, forMs: [0, 0], amount: [1, 20] },
  log_busy: { targets: LOG_SERVER, forMs: [0, 0], amount: [1, 20] },
  log_answers_twice: { targets: LOG_SERVER, forMs: [0, 0], amount: [1, 20] },
  /** Without a word: followers have to notice. */
  log_drops_subscriptions: { targets: LOG_SERVER, forMs: [0, 0] },
  log_ends_subscriptions: { targets: LOG_SERVER, forMs: [0, 0] },
} as const satisfies Record<string, FaultKindPlan>
export type LogFaultKind = keyof typeof LOG_FAULT_KINDS

const KAFKA = ['kafka'] as const
/** What a broker does beyond what its links do. */
export const KAFKA_FAULT_KINDS = {
  /** SIGKILL; its next start takes 3 s longer than another one. */
  kafka_kill: { targets: KAFKA, forMs: [0, 5_000] },
  /** As an operator does it. */
  kafka_restart: { targets: KAFKA, forMs: [0, 3_000] },
  /** Shorter and longer than a send waits, and than members may be silent. */
  kafka_freeze: { targets: KAFKA, forMs: [1_000, 20_000] },
  /** So many records that workers and services have sent are there again, up to five times each. */
  kafka_redeliver: { targets: KAFKA, forMs: [0, 0], amount: [3, 30] },
  /** So many records that nobody can handle, on the topic of worker events and on that of the tasks. */
  kafka_garbage: { targets: KAFKA, forMs: [0, 0], amount: [1, 12] },
} as const satisfies Record<string, FaultKindPlan>
export type KafkaFaultKind = keyof typeof KAFKA_FAULT_KINDS
export type FaultKind = keyof typeof FAULT_KINDS | LogFaultKind | KafkaFaultKind

/** The kinds of a run. Links to the log server and to the broker take turns with the others. */
export function kindsOf(log: LogKind, broker: BrokerKind): Record<string, FaultKindPlan> {
  const links = [
    ...LINKS,
    ...(log === 'eventstoredb' ? LOG_LINKS : []),
    ...(broker === 'kafka' ? KAFKA_LINKS : []),
  ]
  const kinds = Object.entries(FAULT_KINDS).map(([kind, plan]: [string, FaultKindPlan]) => [
    kind,
    plan.targets === LINKS ? { ...plan, targets: links } : plan,
  ])
  return {
    ...Object.fromEntries(kinds),
    ...(log === 'eventstoredb' ? LOG_FAULT_KINDS : {}),
    ...(broker === 'kafka' ? KAFKA_FAULT_KINDS : {}),
  }
}
