/** Why a log cannot be copied; the message says what to do. What was copied stays and is not copied again. */
export class CopyError extends Error {
  /**
   * - `copy_refused`: these two logs cannot be copied, as they are
   * - `copy_conflict`: the target holds something else where an event belongs
   * - `copy_differs`: source and target are not the same after the copy
   */
  readonly code: 'copy_refused' | 'copy_conflict' | 'copy_differs'

  constructor(code: CopyError['code'], message: string) {
    super(message)
    this.code = code
  }
}
