import t from 'tap'
import { memberKey, newTaskId, taskIdOfKey } from '../../src/api/task-id.ts'

t.test('ids made from keys are what they always were', async t => {
  // Made by another program. A difference means that a key which was used before would make a second task.
  t.equal(taskIdOfKey({ tenant: null, route: 'tasks' }, 'order-1842'), 'e1c2d712-215c-584d-841f-6ebc9a1b7588')
  t.equal(
    taskIdOfKey({ tenant: 'acme', route: 'tasks' }, 'order-1842'),
    '774f9656-e7ea-5ece-a288-b3e191c973bd',
  )
  t.equal(
    taskIdOfKey({ tenant: null, route: 'batch' }, memberKey('order-1842', 0)),
    '5f8487ea-76da-5191-beae-6c9b1378bb15',
  )
})

t.test('another tenant, route, key or member is another id', async t => {
  const ids = [
    taskIdOfKey({ tenant: null, route: 'tasks' }, 'k'),
    taskIdOfKey({ tenant: 'default', route: 'tasks' }, 'k'),
    taskIdOfKey({ tenant: 'k', route: 'tasks' }, 'k'),
    taskIdOfKey({ tenant: null, route: 'batch' }, 'k'),
    taskIdOfKey({ tenant: null, route: 'batch' }, memberKey('k', 0)),
    taskIdOfKey({ tenant: null, route: 'batch' }, memberKey('k', 10)),
    taskIdOfKey({ tenant: null, route: 'batch' }, memberKey('k1', 0)),
    taskIdOfKey({ tenant: null, route: 'tasks' }, 'K'),
    newTaskId(),
  ]
  t.equal(new Set(ids).size, ids.length)
})
