/** Tables without borders: columns line up for people, and words stay apart for `awk`. */
import Table from 'cli-table3'

const GAP = 2
const NO_BORDERS = Object.fromEntries(
  [
    'top',
    'top-mid',
    'top-left',
    'top-right',
    'bottom',
    'bottom-mid',
    'bottom-left',
    'bottom-right',
    'left',
    'left-mid',
    'mid',
    'mid-mid',
    'right',
    'right-mid',
    'middle',
  ].map(name => [name, '']),
)

export interface Column {
  title: string
  /** Cells are cut to this many characters. */
  width: number
  align?: 'left' | 'right'
}

/** Lines of a table. Cells may carry colours; what is too long for its column ends in `…`. */
export function tableLines(
  columns: readonly Column[],
  rows: readonly (readonly string[])[],
  paintTitle: (title: string) => string,
  withTitles = true,
): string[] {
  if (rows.length === 0 && !withTitles) return []
  const table = new Table({
    chars: NO_BORDERS,
    style: { 'padding-left': 0, 'padding-right': GAP, head: [], border: [], compact: true },
    colWidths: columns.map(({ width }) => width + GAP),
    colAligns: columns.map(({ align }) => align ?? 'left'),
  })
  if (withTitles) table.push(columns.map(({ title }) => paintTitle(title)))
  for (const row of rows) table.push([...row])
  return table
    .toString()
    .split('\n')
    .map(line => line.trimEnd())
}

/** The width a column needs: its longest cell, within what it may take. */
export const widthOf = (title: string, cells: readonly string[], max: number): number =>
  Math.min(max, Math.max(title.length, ...cells.map(cell => cell.length)))
