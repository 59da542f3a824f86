/** What went wrong while the embedded Postgres was prepared, started or stopped. */
export type EmbeddedPostgresErrorCode =
  | 'binary_missing'
  | 'data_dir_in_use'
  | 'data_dir_not_ours'
  | 'data_dir_unusable'
  | 'init_failed'
  | 'invalid_settings'
  | 'no_account'
  | 'platform_unsupported'
  | 'port_in_use'
  | 'start_failed'
  | 'stop_failed'
  | 'version_mismatch'

/** Says what was wrong, where, and what to do about it; `code` is what programs match on. */
export class EmbeddedPostgresError extends Error {
  override readonly name = 'EmbeddedPostgresError'
  readonly code: EmbeddedPostgresErrorCode

  constructor(code: EmbeddedPostgresErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.code = code
  }
}

/** Whether an operation was refused by the operating system, with one of these codes if any are given. */
export function isSystemError(error: unknown, ...codes: string[]): error is NodeJS.ErrnoException {
  if (!(error instanceof Error && 'syscall' in error && 'code' in error)) return false
  return codes.length === 0 || codes.includes(String(error.code))
}
