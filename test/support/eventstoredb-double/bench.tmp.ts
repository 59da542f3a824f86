import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import sharedPb from '@eventstore/db-client/generated/shared_pb.js'
import streamsGrpcPb from '@eventstore/db-client/generated/streams_grpc_pb.js'
import streamsPb from '@eventstore/db-client/generated/streams_pb.js'
import grpc from '@grpc/grpc-js'

const port = process.argv[2]!,
  pid = process.argv[3]!
const cpu = () => {
  const f = readFileSync(`/proc/${pid}/stat`, 'utf8').split(' ')
  return (Number(f[13]) + Number(f[14])) * 10
}
const c = new streamsGrpcPb.StreamsClient(`127.0.0.1:${port}`, grpc.credentials.createInsecure())
const N = 40000
const call = c.batchAppend()
let inflight = 0,
  sent = 0,
  done = 0
const data = Buffer.from('x'.repeat(400)),
  meta = Buffer.from('y'.repeat(60))
let t0 = performance.now(),
  c0 = cpu(),
  m0 = process.cpuUsage()
await new Promise<void>(res => {
  const go = () => {
    while (inflight < 256 && sent < N) {
      sent++
      inflight++
      const r = new streamsPb.BatchAppendReq()
      const o = new streamsPb.BatchAppendReq.Options()
      const s = new sharedPb.StreamIdentifier()
      s.setStreamName(Buffer.from(`rollcall.task-${randomUUID()}`))
      o.setStreamIdentifier(s)
      o.setNoStream(new sharedPb.Empty() as never)
      const u = new sharedPb.UUID()
      u.setString(randomUUID())
      r.setCorrelationId(u)
      r.setOptions(o)
      const p = new streamsPb.BatchAppendReq.ProposedMessage()
      const i = new sharedPb.UUID()
      i.setString(randomUUID())
      p.setId(i)
      p.getMetadataMap().set('type', 'TaskSubmitted')
      p.getMetadataMap().set('content-type', 'application/json')
      p.setData(data)
      p.setCustomMetadata(meta)
      r.addProposedMessages(p)
      r.setIsFinal(true)
      call.write(r)
    }
  }
  call.on('data', (d: any) => {
    if (!d.hasSuccess()) console.log(d.toObject())
    inflight--
    done++
    if (done === N) res()
    else go()
  })
  go()
})
let s = (performance.now() - t0) / 1000,
  m = process.cpuUsage(m0)
console.log(
  'append/s',
  N / s,
  'server us/append',
  ((cpu() - c0) * 1000) / N,
  'client us',
  (m.user + m.system) / N,
)
call.end()
for (let k = 0; k < 3; k++) {
  const req = new streamsPb.ReadReq()
  const o = new streamsPb.ReadReq.Options()
  const all = new streamsPb.ReadReq.Options.AllOptions()
  all.setStart(new sharedPb.Empty())
  o.setAll(all)
  const u = new streamsPb.ReadReq.Options.UUIDOption()
  u.setString(new sharedPb.Empty())
  o.setUuidOption(u)
  o.setSubscription(new streamsPb.ReadReq.Options.SubscriptionOptions())
  const f = new streamsPb.ReadReq.Options.FilterOptions()
  const e = new streamsPb.ReadReq.Options.FilterOptions.Expression()
  e.setPrefixList(['rollcall.'])
  f.setStreamIdentifier(e)
  f.setCount(new sharedPb.Empty())
  f.setCheckpointintervalmultiplier(10)
  o.setFilter(f)
  req.setOptions(o)
  t0 = performance.now()
  c0 = cpu()
  m0 = process.cpuUsage()
  let got = 0,
    cps = 0
  const rd = c.read(req)
  rd.on('error', () => {})
  await new Promise<void>(res =>
    rd.on('data', (d: any) => {
      if (d.hasCheckpoint()) cps++
      if (d.hasEvent()) {
        d.getEvent().getEvent().getData_asU8()
        if (++got === N) res()
      }
    }),
  )
  s = (performance.now() - t0) / 1000
  m = process.cpuUsage(m0)
  console.log(
    'events/s',
    N / s,
    'server us',
    ((cpu() - c0) * 1000) / N,
    'client us',
    (m.user + m.system) / N,
    'checkpoints',
    cps,
  )
  rd.cancel()
}
c.close()
