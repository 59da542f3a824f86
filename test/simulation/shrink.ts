/** From a story that went wrong to the shortest one that still does. */
import { type SimulationOptions, type SimulationReport, simulate } from './simulation.ts'
import type { Troubles } from './world.ts'

const KINDS: readonly (keyof Troubles)[] = ['pause', 'crash', 'failing', 'late', 'doubled', 'lost']
const MOST = { tasks: 8, services: 3, workers: 3 }

/** Leaves out kinds of trouble, tasks and processes as long as something still goes wrong. */
export async function shrink(failing: SimulationOptions): Promise<SimulationReport> {
  let options: SimulationOptions = failing
  let shortest = await simulate(options)
  const attempt = async (fewer: SimulationOptions): Promise<boolean> => {
    const report = await simulate(fewer)
    if (report.violations.length === 0 || storyOf(report).length > storyOf(shortest).length) return false
    options = fewer
    shortest = report
    return true
  }
  for (const kind of KINDS) await attempt({ ...options, troubles: { ...options.troubles, [kind]: 0 } })
  for (const part of ['tasks', 'services', 'workers'] as const) {
    for (let count = 1; count < (options[part] ?? MOST[part]); count++)
      if (await attempt({ ...options, [part]: count })) break
  }
  return shortest
}

/** The story of the tasks that went wrong, and of what happened to the processes. */
export function storyOf({ violations, story }: SimulationReport): string[] {
  const named = new Set(violations.flatMap(line => line.match(/task-\d+/g) ?? []))
  return story.filter(line => {
    const tasks = line.match(/task-\d+/g)
    return named.size === 0 || tasks === null || tasks.some(task => named.has(task))
  })
}
