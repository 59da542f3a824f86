/** `npm run bench -- <name> [--json]`: runs one bench and prints its figures. */
const [name, ...flags] = process.argv.slice(2)
const BENCHES = ['lifecycle', 'eventlog', 'due', 'kafka', 'status', 'waiting'] as const

if (!BENCHES.some(bench => bench === name) || flags.some(flag => flag !== '--json')) {
  process.stderr.write(`usage: npm run bench -- <${BENCHES.join('|')}> [--json]\n`)
  process.exit(2)
}
const { bench } = (await import(`./${name}.ts`)) as {
  bench: () => Promise<import('./support.ts').BenchResult>
}
const result = await bench()
if (flags.includes('--json')) process.stdout.write(`${JSON.stringify(result, null, 2)}\n`)
else {
  const { cpu, cores, memoryGiB, node } = result.machine
  process.stdout.write(`${result.bench} on ${cores} x ${cpu}, ${memoryGiB} GiB, Node ${node}\n`)
  const width = Math.max(...Object.keys(result.figures).map(figure => figure.length))
  for (const [figure, value] of Object.entries(result.figures))
    process.stdout.write(`  ${figure.padEnd(width)}  ${value.toLocaleString('en')}\n`)
}
