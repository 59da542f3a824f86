/** How Kafka is spoken to: encrypted or not, and as whom. From settings, and the files that they name. */
import { createPrivateKey, X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { type KafkaSasl, type KafkaTls, SASL_MECHANISMS } from '../broker/kafka/options.ts'

const fileSchema = z.string().min(1).optional()

/** As they are set. The password comes from the environment alone: every user of a machine can read a command line. */
export const kafkaSecurityFields = {
  kafkaTls: z.union([z.boolean(), z.stringbool({ truthy: ['true'], falsy: ['false'] })]).default(false),
  /** PEM: the authorities to trust, instead of those of the system. */
  kafkaCaFile: fileSchema,
  /** PEM: our own certificate and its key, for brokers that ask for one. */
  kafkaCertFile: fileSchema,
  kafkaKeyFile: fileSchema,
  kafkaSasl: z.enum(SASL_MECHANISMS).optional(),
  kafkaUsername: z.string().min(1).optional(),
  kafkaPassword: z.string().min(1).optional(),
}
const fieldsSchema = z.object(kafkaSecurityFields)
export type KafkaSecurityFields = z.output<typeof fieldsSchema>

/** As the adapter takes it. */
export interface KafkaSecurity {
  tls: boolean | KafkaTls
  sasl?: KafkaSasl
}

/** The files are read here, once: what is wrong with them is said at the start. */
export function kafkaSecurity(fields: KafkaSecurityFields, context: z.RefinementCtx): KafkaSecurity {
  const refuse = (path: keyof KafkaSecurityFields, message: string): undefined => {
    context.addIssue({ code: 'custom', path: [path], message })
  }
  return { tls: tlsOf(fields, refuse), ...saslOf(fields, refuse) }
}

type Refuse = (path: keyof KafkaSecurityFields, message: string) => undefined

function tlsOf(fields: KafkaSecurityFields, refuse: Refuse): boolean | KafkaTls {
  const { kafkaTls, kafkaCaFile, kafkaCertFile, kafkaKeyFile } = fields
  const named = (['kafkaCaFile', 'kafkaCertFile', 'kafkaKeyFile'] as const).filter(name => fields[name])
  if (named.length === 0) return kafkaTls
  if (!kafkaTls) {
    for (const name of named) refuse(name, 'is of no use without TLS: set ROLLCALL_KAFKA_TLS=true as well')
    return false
  }
  if ((kafkaCertFile === undefined) !== (kafkaKeyFile === undefined))
    refuse(kafkaCertFile ? 'kafkaCertFile' : 'kafkaKeyFile', 'a certificate and its key come together')
  const ca = pem('kafkaCaFile', kafkaCaFile, text => new X509Certificate(text), refuse)
  const cert = pem('kafkaCertFile', kafkaCertFile, text => new X509Certificate(text), refuse)
  const key = pem('kafkaKeyFile', kafkaKeyFile, text => createPrivateKey(text), refuse)
  if (cert && key && !cert.read.checkPrivateKey(key.read))
    refuse('kafkaKeyFile', 'is not the key of the certificate')
  return { ca: ca?.text, cert: cert?.text, key: key?.text }
}

function saslOf(fields: KafkaSecurityFields, refuse: Refuse): { sasl?: KafkaSasl } {
  const { kafkaSasl: mechanism, kafkaUsername: username, kafkaPassword: password } = fields
  if (mechanism === undefined) {
    if (username ?? password)
      refuse('kafkaSasl', `a name or a password needs a mechanism: ${SASL_MECHANISMS.join(', ')}`)
    return {}
  }
  if (username === undefined) refuse('kafkaUsername', `${mechanism} needs a name`)
  if (password === undefined)
    refuse('kafkaPassword', `${mechanism} needs a password, by ROLLCALL_KAFKA_PASSWORD`)
  return username && password ? { sasl: { mechanism, username, password } } : {}
}

/** A file's text and what it reads as; undefined where none is named or it is refused. */
function pem<T>(
  name: keyof KafkaSecurityFields,
  path: string | undefined,
  parse: (text: string) => T,
  refuse: Refuse,
): { text: string; read: T } | undefined {
  if (path === undefined) return
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (error) {
    return refuse(name, `cannot be read: ${(error as Error).message}`)
  }
  try {
    return { text, read: parse(text) }
  } catch {
    // What it holds is not repeated: it may be a key.
    return refuse(
      name,
      `${path} holds no ${name === 'kafkaKeyFile' ? 'key without a passphrase' : 'certificate'} in PEM`,
    )
  }
}
