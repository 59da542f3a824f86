// Does what the compiler leaves undone: copies SQL files from src to dist, so that the built program finds its
// migrations beside its modules, and makes the command executable.
import { chmodSync, cpSync, readdirSync } from 'node:fs'
import { join } from 'node:path'

for (const entry of readdirSync('src', { recursive: true, withFileTypes: true })) {
  if (!entry.isFile() || !entry.name.endsWith('.sql')) continue
  const from = join(entry.parentPath, entry.name)
  cpSync(from, from.replace(/^src/, 'dist'))
}
chmodSync('dist/cli/main.js', 0o755)
