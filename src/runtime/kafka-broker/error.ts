/** What went wrong while a Kafka broker of our own was prepared, started or stopped. */
export type KafkaBrokerErrorCode =
  | 'data_dir_in_use'
  | 'data_dir_unusable'
  | 'jars_missing'
  | 'java_missing'
  | 'maven_missing'
  | 'port_in_use'
  | 'start_failed'
  | 'stop_failed'

/** Says what was wrong, where, and what to do about it; `code` is what programs match on. */
export class KafkaBrokerError extends Error {
  override readonly name = 'KafkaBrokerError'
  readonly code: KafkaBrokerErrorCode

  constructor(code: KafkaBrokerErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.code = code
  }
}

/** The last lines of what a program said, as the end of a message. */
export function lastLines(lines: readonly string[]): string {
  return lines.length > 0 ? ` It said last:\n  ${lines.join('\n  ')}` : ''
}
