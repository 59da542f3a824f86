#!/usr/bin/env node
/** The `rollcall` command. */
import { run } from './program.ts'

await run(process.argv)
