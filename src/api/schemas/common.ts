/** The fields that requests share with what workers send by other means, and what only requests need. */
import { z } from 'zod'

export * from '../../domain/fields.ts'

/**
 * A member that is checked later and by itself: the document shows the schema of this name in its place.
 *
 * @param id of a schema that is registered with it
 */
export const shownAs = (id: string) => z.unknown().meta({ $ref: `#/components/schemas/${id}Input` })

/** How many a page may have. Query strings are text by nature, and '' is no 0 (PITFALLS H9). */
export const pageLimit = (max: number, otherwise: number) =>
  z
    .string()
    .regex(/^[1-9]\d{0,3}$/, `must be 1 to ${max}`)
    .transform(Number)
    .pipe(z.int().max(max, `must be 1 to ${max}`))
    .default(otherwise)
    .meta({ type: 'integer', minimum: 1, maximum: max })
