import { createCanvas, loadImage } from '@napi-rs/canvas'
import t from 'tap'
import { z } from 'zod'
import { imagePayloadSchema, type RenderSteps, renderImage } from '../../src/cli/demo/render-image.ts'

function recorder({ abortAt }: { abortAt?: string | number } = {}) {
  const controller = new AbortController()
  const reason = new Error('cancelled by its owner')
  const entered: string[] = []
  const fractions: number[] = []
  const steps: RenderSteps = {
    step: async name => {
      entered.push(name)
      if (abortAt === name) controller.abort(reason)
    },
    progress: fraction => {
      fractions.push(fraction)
      if (typeof abortAt === 'number' && fraction >= abortAt) controller.abort(reason)
    },
    signal: controller.signal,
  }
  return { steps, entered, fractions, controller, reason }
}

const render = (prompt: string, width = 96, height = 96) =>
  renderImage({ prompt, width, height }, recorder().steps)

async function pixelsOf(png: Buffer) {
  const image = await loadImage(png)
  const context = createCanvas(image.width, image.height).getContext('2d')
  context.drawImage(image, 0, 0)
  const { data } = context.getImageData(0, 0, image.width, image.height)
  return { width: image.width, height: image.height, colours: new Uint32Array(data.buffer), bytes: data }
}

t.test('the result is a PNG of the size asked for', async t => {
  const sizes = [
    [16, 16],
    [16, 1024],
    [1024, 16],
    [160, 90],
    [256, 256],
  ] as const
  for (const [width, height] of sizes) {
    const png = await render('a lake at night', width, height)
    t.equal(png.subarray(1, 4).toString('latin1'), 'PNG')
    t.match(await pixelsOf(png), { width, height })
  }
})

t.test('the picture covers its canvas and shows something', async t => {
  const { bytes, colours } = await pixelsOf(await render('sunset over the hills'))
  t.ok(
    bytes.every((value, index) => index % 4 !== 3 || value === 255),
    'no pixel is transparent',
  )
  t.ok(new Set(colours).size > 200, `${new Set(colours).size} colours`)
})

t.test('the same prompt gives the same bytes, another prompt another picture', async t => {
  const first = await render('robots drinking coffee')
  t.ok(first.equals(await render('robots drinking coffee')))

  const [one, other] = [await pixelsOf(first), await pixelsOf(await render('robots drinking tea'))]
  const changed = one.colours.filter((colour, index) => colour !== other.colours[index]).length
  t.ok(changed > one.colours.length / 2, `${changed} of ${one.colours.length} pixels differ`)
})

t.test('any text is a prompt', async t => {
  for (const prompt of [
    'x'.repeat(500),
    '雪'.repeat(500),
    'two\nlines\t"quoted"',
    '👩‍👩‍👧‍👦🏔️',
    ' ',
    '\u0000',
  ]) {
    t.match(
      await pixelsOf(await render(prompt)),
      { width: 96, height: 96 },
      JSON.stringify(prompt.slice(0, 8)),
    )
  }
})

t.test('a word chooses the mood: night is darker than winter', async t => {
  const brightness = async (prompt: string) => {
    const { bytes } = await pixelsOf(await render(prompt))
    return bytes.reduce((sum, value) => sum + value, 0) / bytes.length
  }
  t.ok((await brightness('a train at night')) + 40 < (await brightness('a train in winter')))
  t.ok((await brightness('NIGHT')) < (await brightness('winters')))
})

t.test('the steps come in order, and progress only rises, from 0 to 1', async t => {
  const { steps, entered, fractions } = recorder()
  await renderImage({ prompt: 'a castle on an island', width: 64, height: 64 }, steps)
  t.same(entered, ['PREPARING', 'GENERATING', 'UPLOADING'])
  t.equal(fractions[0], 0)
  t.equal(fractions.at(-1), 1)
  t.ok(fractions.length >= 8, `${fractions.length} reports`)
  t.same(
    fractions,
    fractions.toSorted((a, b) => a - b),
  )
})

t.test('the event loop runs between layers', async t => {
  const { steps, fractions } = recorder()
  const seen: number[] = []
  const tick = setInterval(() => seen.push(fractions.length), 0)
  t.teardown(() => clearInterval(tick))
  await renderImage({ prompt: 'a wide river', width: 512, height: 512 }, steps)
  t.ok(new Set(seen).size >= 3, `a timer ran at ${new Set(seen).size} points of the work`)
})

t.test('an abort stops the work and rejects with its reason', async t => {
  const payload = { prompt: 'a slow train', width: 64, height: 64 }

  t.test('before the start: no step is entered', async t => {
    const { steps, entered, controller, reason } = recorder()
    controller.abort(reason)
    t.equal(await renderImage(payload, steps).catch(error => error), reason)
    t.same(entered, [])
  })
  t.test('while a layer is painted: no further layer', async t => {
    const { steps, entered, fractions, reason } = recorder({ abortAt: 0.2 })
    t.equal(await renderImage(payload, steps).catch(error => error), reason)
    t.same(entered, ['PREPARING', 'GENERATING'])
    t.equal(fractions.filter(fraction => fraction >= 0.2).length, 1)
  })
  for (const abortAt of ['PREPARING', 'GENERATING', 'UPLOADING']) {
    t.test(`while ${abortAt} is entered: that step does nothing`, async t => {
      const { steps, entered, fractions, reason } = recorder({ abortAt })
      t.equal(await renderImage(payload, steps).catch(error => error), reason)
      t.equal(entered.at(-1), abortAt)
      t.not(fractions.at(-1), 1)
    })
  }
})

t.test('a step that is refused ends the work with its error', async t => {
  const { steps } = recorder()
  const refused = new Error('superseded')
  const result = renderImage(
    { prompt: 'x', width: 16, height: 16 },
    { ...steps, step: () => Promise.reject(refused) },
  )
  t.equal(await result.catch(error => error), refused)
})

t.test('the schema names the field and the limit it refuses', async t => {
  const good = { prompt: 'a lake', width: 256, height: 256 }
  t.same(imagePayloadSchema.parse(good), good)
  const cases: [payload: unknown, message: RegExp][] = [
    [{ ...good, width: 15 }, />=16.*at width/s],
    [{ ...good, width: 1025 }, /<=1024.*at width/s],
    [{ ...good, height: 99.5 }, /expected int.*at height/s],
    [{ ...good, height: '256' }, /expected number, received string.*at height/s],
    [{ ...good, prompt: '' }, />=1 characters.*at prompt/s],
    [{ ...good, prompt: 'x'.repeat(501) }, /<=500 characters.*at prompt/s],
    [{ width: 256, height: 256 }, /expected string, received undefined.*at prompt/s],
    [{ ...good, style: 'oil' }, /Unrecognized key: "style"/],
    [null, /expected object/],
  ]
  for (const [payload, message] of cases) {
    const { error } = imagePayloadSchema.safeParse(payload)
    t.match(error && z.prettifyError(error), message)
  }
})
