/**
 * How tests start the program: as it is shipped, from `dist`, where that was built after the last change of a source. Else
 * from the sources by tsx, whose start takes a second of the processor more for each of the many processes.
 */
import { readdirSync, statSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const file = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url))

const changedAt = (path: string): number => statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0

function isBuilt(): boolean {
  const built = changedAt(file('dist/cli/main.js'))
  return readdirSync(file('src'), { recursive: true, withFileTypes: true }).every(
    entry => changedAt(`${entry.parentPath}/${entry.name}`) < built,
  )
}

/** Node's arguments before those of `rollcall` itself; from any working directory. */
export const ROLLCALL: readonly string[] = isBuilt()
  ? [file('dist/cli/main.js')]
  : [`--import=${import.meta.resolve('tsx')}`, file('src/cli/main.ts')]
