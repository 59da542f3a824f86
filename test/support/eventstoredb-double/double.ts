/**
 * A small server that speaks EventStoreDB's protocol as the client library uses it, with its log in memory and faults
 * on demand. See README.md beside this file for where its behaviour comes from and what it leaves out.
 */
import { once } from 'node:events'
import { type AddressInfo, createServer, type Server as NetServer, type Socket } from 'node:net'
import { Server, ServerCredentials, status } from '@grpc/grpc-js'
import type { Test } from 'tap'
import { appendHandler, deleteHandler, tombstoneHandler } from './append.ts'
import { batchAppendHandler } from './batch-append.ts'
import { gossipHandler, type Member, supportedMethodsHandler } from './cluster.ts'
import { type AppendFailure, Faults, type ReadFailure } from './faults.ts'
import { serializeAnswer } from './messages.ts'
import type { NodeState, OpenSubscription } from './node-state.ts'
import { readHandler } from './read.ts'
import { EventStoreDBStore, type StoreOptions } from './store.ts'
import { GossipService, ServerFeaturesService, StreamsService } from './stubs.ts'

export interface DoubleOptions extends StoreOptions {
  /** A free one without. */
  port?: number
  /** Names and passwords of who may do everything; without, everybody may. The client sends them over TLS only. */
  users?: Readonly<Record<string, string>>
  /** PEM; with them the server speaks TLS only. */
  tls?: { certificate: string | Buffer; key: string | Buffer }
  /** The host that clients are told; the server listens on 127.0.0.1. */
  host?: string
  /** 1 MiB as the server's default. */
  maxAppendBytes?: number
  /** How long an append may wait for its last part; the server's default is 2 s. */
  writeTimeoutMs?: number
  /** Other nodes that gossip tells of. */
  members?: readonly Member[]
  store?: EventStoreDBStore
}

/** What the server takes; the client reads as much. */
const MESSAGE_BYTES_MAX = 17 * 1024 * 1024

export class EventStoreDBDouble {
  readonly port: number
  readonly store: EventStoreDBStore
  readonly #options: DoubleOptions
  readonly #node: NodeState
  readonly #faults = new Faults()
  readonly #sockets = new Set<Socket>()
  #members: readonly Member[]
  #listener: NetServer | null = null
  #grpc: Server | null = null
  #inject: ((socket: Socket) => void) | null = null

  private constructor(options: DoubleOptions, listener: NetServer) {
    this.#options = options
    this.#members = options.members ?? []
    this.port = (listener.address() as AddressInfo).port
    this.store = options.store ?? new EventStoreDBStore(options)
    this.#node = {
      store: this.store,
      faults: this.#faults,
      maxAppendBytes: options.maxAppendBytes ?? 1024 * 1024,
      writeTimeoutMs: options.writeTimeoutMs ?? 2_000,
      users: options.users ?? null,
      subscriptions: new Set<OpenSubscription>(),
    }
    this.#serve()
    this.#accept(listener)
  }

  static async start(options: DoubleOptions = {}): Promise<EventStoreDBDouble> {
    return new EventStoreDBDouble(options, await listen(options.port ?? 0))
  }

  get host(): string {
    return this.#options.host ?? '127.0.0.1'
  }

  /** A connection string; name and password, and the certificate that is to be trusted, are the caller's to add. */
  get address(): string {
    return `esdb://${this.host}:${this.port}?tls=${this.#options.tls !== undefined}`
  }

  /** Connections that are open. */
  get connections(): number {
    return this.#sockets.size
  }

  get subscriptions(): number {
    return this.#node.subscriptions.size
  }

  /** Ends every call and connection and listens no more. The log is kept. Safe to call twice. */
  async stop(): Promise<void> {
    const listener = this.#listener
    this.#listener = null
    this.#inject = null
    this.#grpc?.forceShutdown()
    this.#grpc = null
    this.#faults.drop()
    this.#faults.resume()
    const closed = listener ? once(listener, 'close') : null
    listener?.close()
    await this.cut()
    await closed
  }

  /** Listens again on the same port, with the log as it was and without what only memory held. */
  async start(): Promise<void> {
    if (this.#listener) return
    this.store.restarted()
    const listener = await listen(this.port)
    this.#serve()
    this.#accept(listener)
  }

  /** @param pauseMs how long it is away */
  async restart(pauseMs = 0): Promise<void> {
    await this.stop()
    if (pauseMs > 0) await new Promise(resolve => setTimeout(resolve, pauseMs))
    await this.start()
  }

  /** Every connection is destroyed at once; new ones are taken. Resolves when they are gone. */
  async cut(): Promise<void> {
    const gone = [...this.#sockets].map(socket => once(socket, 'close'))
    for (const socket of this.#sockets) socket.destroy()
    await Promise.all(gone)
  }

  /** New connections are refused, those that are open are destroyed. */
  async refuse(): Promise<void> {
    const listener = this.#listener
    this.#listener = null
    const closed = listener ? once(listener, 'close') : null
    listener?.close()
    await this.cut()
    await closed
  }

  /** Connections are taken again after `refuse`. */
  async accept(): Promise<void> {
    if (this.#listener) return
    if (!this.#grpc) throw new Error('the double was stopped: start it')
    this.#accept(await listen(this.port))
  }

  /** The next appends are stored and never answered. */
  loseAcks(count = Number.POSITIVE_INFINITY): void {
    this.#faults.acksToLose = count
  }

  /** Requests are taken and neither stored nor answered; subscriptions stand still. */
  stall(): void {
    this.#faults.stall()
  }

  /** What was held is stored and answered, in its order. */
  resume(): void {
    this.#faults.resume()
  }

  /** Every append is answered so much later, after it was stored. */
  answerLate(ms: number): void {
    this.#faults.lateMs = ms
  }

  /** The next answers of BatchAppend are sent a second time. */
  answerTwice(count: number, afterMs = 0): void {
    this.#faults.answersToRepeat = count
    this.#faults.repeatAfterMs = afterMs
  }

  /** @param store whether they are stored all the same, as after a timeout they may be */
  failAppends(
    failure: AppendFailure,
    options: { count?: number | undefined; store?: boolean | undefined } = {},
  ): void {
    this.#faults.failAppends(failure, options.count ?? 1, options.store ?? false)
  }

  failReads(failure: ReadFailure, options: { count?: number | undefined } = {}): void {
    this.#faults.failReads(failure, options.count ?? 1)
  }

  /** Subscriptions that are open get nothing more and do not end. @returns how many */
  dropSubscriptions(): number {
    for (const subscription of this.#node.subscriptions) subscription.silence()
    return this.#node.subscriptions.size
  }

  /** Subscriptions that are open end: with an error, or as if there were nothing more. @returns how many */
  endSubscriptions(reason: 'unavailable' | 'cancelled' | 'end' = 'unavailable'): number {
    const open = [...this.#node.subscriptions]
    const error =
      reason === 'end'
        ? null
        : { code: reason === 'cancelled' ? status.CANCELLED : status.UNAVAILABLE, details: 'ended on demand' }
    for (const subscription of open) subscription.end(error)
    return open.length
  }

  /** Sends every open subscription a checkpoint: repeated, ahead of events that follow, or behind. */
  sendCheckpoint(position: bigint = this.store.lastPosition): void {
    for (const subscription of this.#node.subscriptions) subscription.checkpoint(position)
  }

  /** Calls that need the leader are refused; the error and gossip name where it is, if that is known. */
  becomeFollower(leader: { host: string; port: number } | null): void {
    this.#faults.leader = leader
    const others = this.#members.map(member => ({ ...member, state: 'follower' as const }))
    this.#members = leader
      ? [...others.filter(member => member.port !== leader.port), { ...leader, state: 'leader' }]
      : others
  }

  becomeLeader(): void {
    this.#faults.leader = 'itself'
    this.#members = this.#members.map(member => ({ ...member, state: 'follower' }))
  }

  /** All is well again, except what is gone: what was held is carried out, new connections are taken. */
  async restore(): Promise<void> {
    this.#faults.acksToLose = 0
    this.#faults.answersToRepeat = 0
    this.#faults.lateMs = 0
    this.#faults.failAppends('unknown', 0, false)
    this.#faults.failReads('unknown', 0)
    this.becomeLeader()
    this.resume()
    if (this.#grpc) await this.accept()
    else await this.start()
  }

  /** An older copy of the log takes its place: what lies behind the position is gone, connections are cut. */
  async goBackTo(position: bigint): Promise<void> {
    this.store.truncateAfter(position)
    await this.cut()
  }

  /** An empty log takes the place of this one. */
  async forget(): Promise<void> {
    await this.goBackTo(-1n)
  }

  #accept(listener: NetServer): void {
    this.#listener = listener
    listener.on('connection', socket => {
      if (!this.#inject) return socket.destroy()
      this.#sockets.add(socket)
      socket.setNoDelay(true)
      socket.on('error', () => {})
      socket.once('close', () => this.#sockets.delete(socket))
      this.#inject(socket)
    })
  }

  #serve(): void {
    const { tls } = this.#options
    const credentials = tls
      ? ServerCredentials.createSsl(null, [
          { cert_chain: Buffer.from(tls.certificate), private_key: Buffer.from(tls.key) },
        ])
      : ServerCredentials.createInsecure()
    const grpc = new Server({
      'grpc.max_receive_message_length': MESSAGE_BYTES_MAX,
      'grpc.max_send_message_length': MESSAGE_BYTES_MAX,
      'grpc.enable_channelz': 0,
    })
    grpc.addService(
      {
        ...StreamsService,
        read: { ...StreamsService.read, responseSerialize: serializeAnswer },
        batchAppend: { ...StreamsService.batchAppend, responseSerialize: serializeAnswer },
      },
      {
        read: readHandler(this.#node),
        append: appendHandler(this.#node),
        delete: deleteHandler(this.#node),
        tombstone: tombstoneHandler(this.#node),
        batchAppend: batchAppendHandler(this.#node),
      },
    )
    grpc.addService(GossipService, { read: gossipHandler(this.#node, () => this.#cluster()) })
    grpc.addService(ServerFeaturesService, { getSupportedMethods: supportedMethodsHandler(this.#node) })
    const injector = grpc.createConnectionInjector(credentials)
    this.#grpc = grpc
    this.#inject = socket => injector.injectConnection(socket)
  }

  #cluster(): Member[] {
    const state = this.#faults.leader === 'itself' ? 'leader' : 'follower'
    return [{ host: this.host, port: this.port, state }, ...this.#members]
  }
}

async function listen(port: number): Promise<NetServer> {
  const listener = createServer()
  listener.listen(port, '127.0.0.1')
  await once(listener, 'listening')
  return listener
}

/** Starts a double on a free port of 127.0.0.1; it ends with the test. */
export async function startEventStoreDBDouble(
  t: Test | null,
  options: DoubleOptions = {},
): Promise<EventStoreDBDouble> {
  const double = await EventStoreDBDouble.start(options)
  t?.teardown(() => double.stop())
  return double
}
