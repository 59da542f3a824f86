/**
 * The work behind the demo's task type `image.generate`: a landscape painted from a prompt. There is no model here: a
 * hash of the prompt seeds the scene, and a few of its words ("night", "snow", "lake") choose the mood and the water.
 * The same prompt and size give the same bytes on one machine; the caption is set in whatever font that machine has,
 * and left out where it has none.
 */
import { createHash } from 'node:crypto'
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import { createCanvas, GlobalFonts, type SKRSContext2D } from '@napi-rs/canvas'
import { z } from 'zod'

export const imagePayloadSchema = z.strictObject({
  prompt: z.string().min(1).max(500),
  width: z.int().min(16).max(1024),
  height: z.int().min(16).max(1024),
})
export type ImagePayload = z.infer<typeof imagePayloadSchema>

export interface RenderSteps {
  step(name: 'PREPARING' | 'GENERATING' | 'UPLOADING'): Promise<void>
  progress(fraction: number): void
  signal: AbortSignal
}

/** Resolves to the PNG; rejects with `signal.reason` at the next layer once the signal is aborted. */
export async function renderImage(payload: ImagePayload, steps: RenderSteps): Promise<Buffer> {
  const enter = async (name: Parameters<RenderSteps['step']>[0]) => {
    steps.signal.throwIfAborted()
    await steps.step(name)
    steps.signal.throwIfAborted()
  }
  await enter('PREPARING')
  steps.progress(0)
  const scene = composeScene(payload)

  await enter('GENERATING')
  const canvas = createCanvas(payload.width, payload.height)
  const context = canvas.getContext('2d')
  const layers = layersOf(scene)
  for (const [index, paint] of layers.entries()) {
    context.save()
    context.scale(payload.height, payload.height)
    paint(scene, context)
    context.restore()
    steps.progress((0.9 * (index + 1)) / layers.length)
    await yieldToEventLoop() // heartbeats leave, and an abort is noticed
    steps.signal.throwIfAborted()
  }

  await enter('UPLOADING')
  const png = await canvas.encode('png')
  steps.signal.throwIfAborted()
  steps.progress(1)
  return png
}

type Hsl = readonly [hue: number, saturation: number, lightness: number]
type Tone = 'zenith' | 'middle' | 'horizon' | 'light' | 'near'
type Mood = Record<Tone, Hsl> & {
  words: string
  stars: number
  snow: number
}

// biome-ignore format: a table reads best with one mood per row
const moods: readonly Mood[] = [
  { words: 'night|moon|star|dark|space',           zenith: [232, 55, 10], middle: [226, 50, 24], horizon: [208, 45, 48], light: [48, 80, 93],  near: [230, 45, 7],  stars: 220, snow: 0.35 },
  { words: 'dawn|morning|pink|rose|spring',        zenith: [242, 38, 66], middle: [318, 48, 79], horizon: [28, 90, 86],  light: [46, 95, 92],  near: [282, 26, 24], stars: 0,   snow: 0.3 },
  { words: 'sunset|dusk|evening|red|fire|autumn',  zenith: [268, 45, 27], middle: [346, 65, 55], horizon: [32, 95, 68],  light: [48, 100, 86], near: [296, 45, 11], stars: 50,  snow: 0 },
  { words: 'day|summer|sky|blue|sea|ocean|beach',  zenith: [212, 72, 47], middle: [204, 68, 69], horizon: [190, 60, 90], light: [50, 100, 95], near: [168, 52, 15], stars: 0,   snow: 0.9 },
  { words: 'forest|wood|green|aurora|jungle|tree', zenith: [196, 50, 20], middle: [174, 36, 43], horizon: [92, 48, 80],  light: [60, 90, 92],  near: [170, 48, 10], stars: 40,  snow: 0.2 },
  { words: 'winter|snow|ice|cold|fog|mist',        zenith: [214, 34, 58], middle: [210, 32, 74], horizon: [26, 45, 92],  light: [44, 90, 97],  near: [216, 30, 22], stars: 0,   snow: 1 },
]

/** Lengths are in units of the image's height, so that a prompt keeps its landscape at every size. */
interface Scene {
  prompt: string
  width: number
  seed: number
  mood: Mood
  turn: number // of every hue, in degrees
  sun: { x: number; y: number; radius: number }
  shore: number // between two pixel rows, so that it leaves no seam; 1 where there is no water
  ridges: number
  relief: number
}

function composeScene({ prompt, width, height }: ImagePayload): Scene {
  const digest = createHash('sha256').update(prompt).digest()
  const between = (index: number, least: number, most: number) =>
    least + ((most - least) * digest[index]!) / 255
  const mentions = (words: string) => new RegExp(`\\b(${words})s?\\b`, 'i').test(prompt)
  const hasWater = mentions('lake|sea|ocean|river|water|beach|island|harbou?r') || digest[5]! < 128
  return {
    prompt,
    width: width / height,
    seed: digest.readUInt32BE(28),
    mood: moods.find(({ words }) => mentions(words)) ?? moods[digest[0]! % moods.length]!,
    turn: between(1, -16, 16),
    sun: {
      x: (width / height) * between(2, 0.2, 0.8),
      y: between(3, 0.16, 0.4),
      radius: between(4, 0.035, 0.075),
    },
    shore: hasWater ? Math.round(between(6, 0.7, 0.78) * height) / height : 1,
    ridges: Math.round(between(7, 4, 6)),
    relief: between(8, 0.2, 0.38),
  }
}

type Layer = (scene: Scene, context: SKRSContext2D) => void

function layersOf(scene: Scene): Layer[] {
  const ridges = Array.from({ length: scene.ridges }, (_, index): Layer => {
    return (scene, context) => paintRidge(scene, context, index)
  })
  return [
    paintSky,
    paintStars,
    paintSun,
    paintClouds,
    ...ridges,
    ...(scene.shore < 1 ? [paintWater] : []),
    writeCaption,
  ]
}

function paintSky({ mood, turn, width }: Scene, context: SKRSContext2D): void {
  const colors = [mood.zenith, mood.middle, mood.horizon].map(color => css(color, turn))
  wash(context, width, 0, 0.66, colors)
}

function paintStars({ mood, seed, width }: Scene, context: SKRSContext2D): void {
  const random = randomFrom(seed + 1)
  for (let star = 0; star < mood.stars * width; star++) {
    const [x, y, size] = [random() * width, random() ** 1.5 * 0.6, random() ** 4]
    context.fillStyle = css(mood.light, 0, (0.3 + 0.7 * random()) * (1 - y / 0.6))
    disc(context, x, y, 0.0011 + 0.0024 * size)
  }
}

function paintSun({ mood, sun }: Scene, context: SKRSContext2D): void {
  glow(context, sun.x, sun.y, 0.75, mood.light, 0.45)
  glow(context, sun.x, sun.y, 3 * sun.radius, mood.light, 0.35)
  context.fillStyle = css(mood.light)
  disc(context, sun.x, sun.y, sun.radius)
}

/** Long streaks, each made of soft flat puffs. */
function paintClouds({ mood, seed, width }: Scene, context: SKRSContext2D): void {
  const random = randomFrom(seed + 2)
  const [hue, saturation, lightness] = mood.horizon
  const color: Hsl = [hue, saturation, Math.min(96, lightness + 8)]
  context.scale(5, 1)
  for (let cloud = 0; cloud < 3 + 4 * width; cloud++) {
    const [left, top, length] = [random() * width, 0.04 + 0.44 * random(), 0.1 + 0.35 * random()]
    for (let puff = 0; puff < 14; puff++) {
      const along = random()
      const radius = (0.008 + 0.022 * random()) * Math.sin(Math.PI * (0.1 + 0.8 * along))
      const [x, y] = [(left + (along - 0.5) * length) / 5, top + 0.02 * (random() - 0.5) - 0.03 * along]
      glow(context, x, y, radius, color, 0.28)
    }
  }
}

/** The farthest first: each is darker, lower and rounder than the one behind it, and the nearer ones carry trees. */
function paintRidge(scene: Scene, context: SKRSContext2D, index: number): void {
  const { mood, turn, seed, width, shore, relief } = scene
  const { canvas } = context
  const nearness = index / (scene.ridges - 1)
  const distance = 1 - nearness
  const base = 0.57 + ((shore < 1 ? shore - 0.012 : 0.9) - 0.57) * nearness ** 1.3
  const rise = relief * (0.3 + 0.7 * distance)
  const top = (x: number) => base - rise * skyline(x * (1.2 + distance), seed + 31 * index, distance)

  // A sheet of its own: washing colour over colour on the shared canvas would leave a dark seam along the skyline.
  const sheet = createCanvas(canvas.width, canvas.height)
  const ridge = sheet.getContext('2d')
  ridge.scale(canvas.height, canvas.height)
  ridge.moveTo(width, shore)
  ridge.lineTo(0, shore)
  for (let x = 0; x < width + 0.004; x += 0.004) ridge.lineTo(x, top(x))
  ridge.closePath()
  const random = randomFrom(seed + 7 * index)
  const tallest = nearness > 0.5 ? 0.06 * nearness ** 2 : 0
  for (let x = 0; tallest > 0 && x < width; x += tallest * (0.1 + 0.25 * random())) {
    const height = tallest * (0.3 + 0.7 * random()) * fractal(x * 3, seed + index, 2)
    ridge.moveTo(x - 0.17 * height, top(x) + 0.004)
    ridge.lineTo(x, top(x) - height)
    ridge.lineTo(x + 0.17 * height, top(x) + 0.004)
  }
  ridge.fillStyle = css(mood.near, turn)
  ridge.fill()

  ridge.globalCompositeOperation = 'source-atop'
  const veil = (color: Hsl, ...alphas: number[]) => alphas.map(alpha => css(color, turn, alpha))
  wash(ridge, width, 0, 1, veil(mood.middle, 0.85 * distance ** 0.8, 0.85 * distance ** 0.8))
  if (index < 2)
    wash(ridge, width, base - 0.8 * rise, base - 0.3 * rise, veil(mood.light, mood.snow * distance, 0))
  wash(ridge, width, base - 0.1, base + 0.2, veil(mood.horizon, 0.3 * distance, 0.8 * distance)) // mist in the valley
  context.drawImage(sheet, 0, 0, width, 1)
}

/** Mirrors what is painted above the shore in strips that sway more, and darken, towards the viewer. */
function paintWater({ mood, turn, seed, width, shore, sun }: Scene, context: SKRSContext2D): void {
  const { canvas } = context
  const above = createCanvas(canvas.width, Math.round(shore * canvas.height))
  above.getContext('2d').drawImage(canvas, 0, 0)
  const random = randomFrom(seed + 3)
  const strip = 0.004
  for (let y = shore; y < 1; y += strip) {
    const depth = y - shore
    const from = above.height - (1.6 * depth + strip) * canvas.height
    const sway = depth * 0.12 * (fractal(y * 60, seed, 2) - 0.5)
    context.save()
    context.translate(sway, y)
    context.scale(1.04, -1)
    context.drawImage(above, 0, from, above.width, strip * canvas.height, -0.02 * width, -strip, width, strip)
    context.restore()
  }
  const shades = [0, 0.4, 0.6].map(alpha => css(mood.zenith, turn, alpha))
  wash(context, width, shore, 1, shades)
  for (let glint = 0; glint < 90; glint++) {
    const depth = (1 - shore) * random()
    const x = sun.x + (random() + random() + random() - 1.5) * (0.1 + 0.8 * depth)
    context.fillStyle = css(mood.light, 0, 0.5 * random())
    context.fillRect(x, shore + depth, 0.01 + 0.1 * depth * random(), 0.001 + 0.008 * depth)
  }
}

function writeCaption({ prompt, width }: Scene, context: SKRSContext2D): void {
  const { canvas } = context
  if (GlobalFonts.families.length === 0 || canvas.width < 96 || canvas.height < 64) return
  wash(context, width, 0.84, 1, ['rgba(0, 0, 0, 0)', 'rgba(0, 0, 0, 0.45)'])

  context.resetTransform()
  const size = Math.max(9, Math.round(Math.min(canvas.width, canvas.height) * 0.034))
  context.font = `${size}px sans-serif`
  context.fillStyle = 'rgba(255, 255, 255, 0.85)'
  const characters = Array.from(prompt.replace(/\s+/g, ' ').trim())
  let text = characters.join('')
  while (characters.length > 0 && context.measureText(text).width > canvas.width - 2 * size) {
    characters.splice(Math.floor(characters.length * 0.97))
    text = `${characters.join('').trimEnd()}…`
  }
  context.fillText(text, size, canvas.height - size)
}

function disc(context: SKRSContext2D, x: number, y: number, radius: number): void {
  context.beginPath()
  context.arc(x, y, radius, 0, 2 * Math.PI)
  context.fill()
}

function glow(context: SKRSContext2D, x: number, y: number, radius: number, color: Hsl, alpha: number): void {
  const gradient = context.createRadialGradient(x, y, 0, x, y, radius)
  gradient.addColorStop(0, css(color, 0, alpha))
  gradient.addColorStop(0.4, css(color, 0, alpha * 0.4))
  gradient.addColorStop(1, css(color, 0, 0))
  context.fillStyle = gradient
  disc(context, x, y, radius)
}

/** Colours from one height to another, evenly spaced; the first and the last go on to the image's edges. */
function wash(context: SKRSContext2D, width: number, from: number, to: number, colors: string[]): void {
  const gradient = context.createLinearGradient(0, from, 0, to)
  for (const [index, color] of colors.entries()) gradient.addColorStop(index / (colors.length - 1), color)
  context.fillStyle = gradient
  context.fillRect(0, 0, width, 1)
}

function css([hue, saturation, lightness]: Hsl, turn = 0, alpha = 1): string {
  return `hsla(${(hue + turn + 360) % 360}, ${saturation}%, ${lightness}%, ${alpha})`
}

/** Heights of 0..1: sharp crests for mountains, round ones for hills. */
function skyline(x: number, seed: number, sharpness: number): number {
  const crest = 1 - Math.abs(2 * fractal(x, seed, 5) - 1)
  return sharpness * crest ** 1.5 + (1 - sharpness) * fractal(x * 1.4, seed + 11, 3)
}

function fractal(x: number, seed: number, octaves: number): number {
  let [sum, weight, total] = [0, 1, 0]
  for (let octave = 0; octave < octaves; octave++, weight /= 2) {
    sum += weight * noise(x * 2 ** octave, seed + 101 * octave)
    total += weight
  }
  return sum / total
}

function noise(x: number, seed: number): number {
  const cell = Math.floor(x)
  const [left, right, t] = [scatter(cell + seed), scatter(cell + 1 + seed), x - cell]
  return left + (right - left) * t * t * (3 - 2 * t)
}

function randomFrom(seed: number): () => number {
  let count = 0
  return () => scatter(seed * 1013 + count++)
}

/** A fixed pseudorandom number of 0..1 for each integer. */
function scatter(value: number): number {
  let bits = Math.imul(value, 0x9e3779b1)
  bits = Math.imul(bits ^ (bits >>> 15), 0x85ebca6b)
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35)
  return ((bits ^ (bits >>> 16)) >>> 0) / 0xffffffff
}
