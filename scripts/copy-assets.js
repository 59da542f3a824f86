// Does what the compiler leaves undone: copies SQL files from src to dist, so that the built program finds its
// migrations beside its modules, and the list of Kafka's jars; and makes the command executable.
import { chmodSync, cpSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'

const sqlIn = folder =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile() && entry.name.endsWith('.sql'))
    .map(entry => join(entry.parentPath, entry.name))

// A migration that was renamed since the last build must not run under both names.
for (const stale of sqlIn('dist')) rmSync(stale)
for (const from of sqlIn('src')) cpSync(from, from.replace(/^src/, 'dist'))
cpSync('src/runtime/kafka-broker/pom.xml', 'dist/runtime/kafka-broker/pom.xml')
chmodSync('dist/cli/main.js', 0o755)
