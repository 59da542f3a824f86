/** docker-compose.yml as Compose reads it: anchors merged, variables resolved. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parse } from 'yaml'
import { z } from 'zod'

const root = new URL('../../', import.meta.url)
/** A file of the repository, by its path from the root. */
export const repositoryFile = (path: string): string => fileURLToPath(new URL(path, root))
export const readRepositoryFile = (path: string): string => readFileSync(repositoryFile(path), 'utf8')

/** As far as this repository uses it; what may be written is the schema's matter. */
const serviceSchema = z.looseObject({
  image: z.string(),
  build: z.string().optional(),
  command: z.array(z.string()).default([]),
  restart: z.string().optional(),
  environment: z.record(z.string(), z.string()).default({}),
  ports: z.array(z.string()).default([]),
  volumes: z.array(z.string()).default([]),
  networks: z.array(z.string()),
  depends_on: z.record(z.string(), z.object({ condition: z.string() })).default({}),
  healthcheck: z.looseObject({ test: z.array(z.string()).min(2) }).optional(),
})
const composeSchema = z.looseObject({
  services: z.record(z.string(), serviceSchema),
  networks: z.record(z.string(), z.object({ internal: z.boolean().optional() }).nullable()),
  volumes: z.record(z.string(), z.unknown()),
})
export type ComposeFile = z.output<typeof composeSchema>
export type ComposeService = z.output<typeof serviceSchema>

export const composeText = readRepositoryFile('docker-compose.yml')

/** @throws Error for a required variable that is missing, with the message that stands in the file */
export function resolvedCompose(variables: Record<string, string>, text: string = composeText): unknown {
  return resolve(parse(text, { merge: true }), variables)
}

export const readCompose = (variables: Record<string, string>): ComposeFile =>
  composeSchema.parse(resolvedCompose(variables))

/** Of the forms of Compose these are the ones this file may use: `$$`, `${NAME:-default}`, `${NAME:?message}`. */
const VARIABLE = /\$(?:\$|\{(?<name>[A-Z_]+):(?<kind>[-?])(?<rest>[^}]*)\})?/g

export interface Variable {
  name: string
  /** Null where it is required. */
  fallback: string | null
}

/** The variables of the file, in order and each as often as it is used. */
export function variablesOf(text: string): Variable[] {
  return [...text.matchAll(VARIABLE)].flatMap(({ groups }) =>
    groups?.name ? [{ name: groups.name, fallback: groups.kind === '-' ? (groups.rest ?? '') : null }] : [],
  )
}

function resolve(value: unknown, variables: Record<string, string>): unknown {
  if (typeof value === 'string')
    return value.replace(VARIABLE, (whole, name?: string, kind?: string, rest?: string) => {
      if (whole === '$$') return '$'
      if (name === undefined) throw new Error(`a $ that is no variable this test knows: ${value}`)
      if (variables[name]) return variables[name]
      if (kind === '?') throw new Error(`${name}: ${rest}`)
      return rest ?? ''
    })
  if (Array.isArray(value)) return value.map(one => resolve(one, variables))
  if (value !== null && typeof value === 'object')
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolve(one, variables)]))
  return value
}
