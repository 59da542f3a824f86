/** Being asked to stop: once for an orderly end, again for one at once. */

const SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const
/**
 * A Ctrl-C under npm comes twice, from the terminal and again from npm, and is one wish. Nobody asks twice in
 * earnest so quickly.
 */
const SAME_WISH_MS = 500

export interface StopSignals {
  /** Resolves when this process is asked to stop. */
  readonly asked: Promise<NodeJS.Signals>
  /** Resolves when it is asked again. */
  readonly askedAgain: Promise<NodeJS.Signals>
  readonly stopping: boolean
  /** For what takes one; aborted when this process is asked to stop. */
  readonly signal: AbortSignal
  /** Leaves signals to Node again. */
  release(): void
}

/** From now on signals are wishes; whoever calls this sees to the end of the process. */
export function stopSignals(): StopSignals {
  const first = promise()
  const second = promise()
  const controller = new AbortController()
  let since: number | null = null
  const onSignal = (signal: NodeJS.Signals) => {
    const now = performance.now()
    if (since === null) {
      since = now
      controller.abort(new Error(`stopped by ${signal}`))
      first.resolve(signal)
    } else if (now - since > SAME_WISH_MS) second.resolve(signal)
  }
  for (const signal of SIGNALS) process.on(signal, onSignal)
  return {
    asked: first.promise,
    askedAgain: second.promise,
    get stopping() {
      return since !== null
    },
    signal: controller.signal,
    release: () => {
      for (const signal of SIGNALS) process.off(signal, onSignal)
    },
  }
}

function promise() {
  let resolve: (signal: NodeJS.Signals) => void = () => {}
  const made = new Promise<NodeJS.Signals>(settle => {
    resolve = settle
  })
  return { promise: made, resolve }
}
