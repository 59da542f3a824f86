/** The fields that requests share with what workers send by other means. */
export * from '../../domain/fields.ts'
