import t from 'tap'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { conformance } from './event-log.ts'

await conformance(t, 'memory', async t => {
  const log = createMemoryEventLog()
  t.teardown(() => log.close())
  return log
})

t.test('its identity may be given', async t => t.equal(createMemoryEventLog({ id: 'x' }).id, 'x'))
