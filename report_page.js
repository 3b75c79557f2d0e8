// The browser of trajectories in report.html. Everything that models or phones wrote goes in as text, never as markup.
'use strict'
const read = id => JSON.parse(document.getElementById(id).textContent)
const make = (tag, text = '', css = '') => {
  const node = document.createElement(tag)
  node.textContent = text
  if (css) node.className = css
  return node
}
const $ = id => document.getElementById(id)
const index = read('index')
const at = Object.fromEntries(index.columns.map((name, number) => [name, number]))
const word = (row, name) => index[name][row[at[name]]]  // of a column that is a number of a list
const FIELDS = ['text', 'family', 'outcome', 'split', 'from', 'to', 'screens']
const SHOWN = 200
let found = [], chosen = null, step = 0, told = null, shownRows = SHOWN
const unpacked = new Map()

async function unpack(number) {  // the steps of one chunk of rows
  if (!unpacked.has(number)) {
    const bytes = Uint8Array.from(atob($('steps-' + number).textContent), letter => letter.charCodeAt(0))
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))
    unpacked.set(number, JSON.parse(await new Response(stream).text()))
  }
  return unpacked.get(number)
}

function filter() {
  const want = Object.fromEntries(FIELDS.map(name => [name, name === 'screens' ? $(name).checked : $(name).value]))
  const text = want.text.trim().toLowerCase()
  const from = want.from === '' ? -Infinity : +want.from, to = want.to === '' ? Infinity : +want.to
  const fits = row => (!want.family || word(row, 'family') === want.family) &&
    (!want.outcome || row[at.outcome] === want.outcome) && (!want.split || word(row, 'split') === want.split) &&
    row[at.version] >= from && row[at.version] <= to && (!want.screens || isReal(row)) &&
    (!text || word(row, 'instruction').toLowerCase().includes(text) || '#' + row[at.id] === text)
  found = index.rows.filter(fits)
  shownRows = SHOWN
  list()
}

const pictures = row => $('screens-' + row[at.id])
const isReal = row => row[at.screens] && pictures(row)
const clock = seconds => new Date(seconds * 1000).toISOString().slice(11, 19)

function list() {
  const body = make('tbody')
  for (const row of found.slice(0, shownRows)) {
    const line = make('tr', '', row === chosen ? 'chosen' : '')
    line.tabIndex = 0
    line.dataset.id = row[at.id]
    line.append(make('td', '#' + row[at.id], 'quiet number'), make('td', word(row, 'instruction'), 'text'),
      make('td', word(row, 'family'), 'quiet'), make('td', row[at.outcome], row[at.outcome]),
      make('td', row[at.length], 'number'), make('td', row[at.version], 'number'), make('td', word(row, 'split'), 'quiet'),
      make('td', pictures(row) ? (row[at.screens] ? 'yes' : 'cells') : '', 'quiet'))
    line.onclick = () => choose(row)
    line.onkeydown = event => { if (event.key === 'Enter') choose(row) }
    body.append(line)
  }
  const head = make('tr')
  for (const title of ['id', 'task', 'family', 'outcome', 'steps', 'version', 'split', 'screens']) head.append(make('th', title))
  const table = make('table')
  table.append(make('thead'), body)
  table.tHead.append(head)
  $('list').replaceChildren(table)
  const judged = found.filter(row => row[at.outcome] !== 'unjudged')
  const good = judged.filter(row => row[at.outcome] === 'success').length
  $('count').textContent = `${found.length} of ${index.rows.length} trajectories` +
    (judged.length ? `, ${good} of ${judged.length} judged ones a success (${(100 * good / judged.length).toFixed(1)} %)` : '')
  $('more').hidden = found.length <= shownRows
  $('more').textContent = `show more (${found.length - shownRows} left)`
}

async function choose(row, at_step = 0) {
  chosen = row
  step = at_step
  const place = index.rows.indexOf(row)
  const chunk = await unpack(Math.floor(place / index.chunk))
  if (chosen !== row) return  // another was chosen meanwhile
  told = chunk[place % index.chunk]
  for (const line of $('list').querySelectorAll('tbody tr')) line.className = +line.dataset.id === row[at.id] ? 'chosen' : ''
  show()
  remember()
}

const number = (value, digits = 3) => value === null || value === undefined ? '–' : (+value).toFixed(digits)

function screen(place, width) {  // the screen of one step, the touch drawn on it
  const box = make('div', '', 'screen'), data = pictures(chosen)
  if (data) {
    const stored = JSON.parse(data.textContent)
    if (stored.urls[place]) {
      const image = make('img', '', stored.real ? '' : 'cells')
      image.src = stored.urls[place]
      image.alt = 'screen ' + (place + 1)
      if (stored.real) box.classList.add('real')
      box.append(image)
    }
  }
  const touch = told.touches[place]
  if (touch) {
    const space = 'http://www.w3.org/2000/svg', drawing = document.createElementNS(space, 'svg')
    const add = (tag, values) => {
      const shape = document.createElementNS(space, tag)
      for (const [name, value] of Object.entries(values)) shape.setAttribute(name, value)
      drawing.append(shape)
    }
    const [y, x, y2, x2] = touch.map(value => 100 * value + '%')
    if (Math.hypot(touch[0] - touch[2], touch[1] - touch[3]) > 0.04) {
      add('line', {x1: x, y1: y, x2: x2, y2: y2, stroke: '#ea580c', 'stroke-width': width / 50})
      add('circle', {cx: x2, cy: y2, r: width / 50, fill: '#ea580c'})
    }
    add('circle', {cx: x, cy: y, r: width / 17, fill: 'none', stroke: '#fff', 'stroke-width': width / 32})
    add('circle', {cx: x, cy: y, r: width / 17, fill: 'none', stroke: '#ea580c', 'stroke-width': width / 60})
    box.append(drawing)
  }
  return box
}

function show() {
  const row = chosen
  $('shown').hidden = false
  $('name').textContent = `#${row[at.id]}: ${word(row, 'instruction')}`
  const facts = $('facts')
  facts.replaceChildren(make('b', row[at.outcome], row[at.outcome]), ` – ${word(row, 'reason') || 'no reason was given'}`,
    make('br'), make('span', [word(row, 'family'), word(row, 'split'), `policy version ${row[at.version]}`,
      `worker ${row[at.worker]}`, `reward ${row[at.reward]}`, `ended ${clock(row[at.created])} UTC`,
      ...(told.error ? [] : [told.greedy ? 'greedy actions' : 'sampled actions', `${told.seconds} s`, told.serial,
        told.terminated ? 'terminated' : 'truncated', ...(told.recorded ? [`recorded in ${told.recorded}`] : [])])]
      .filter(Boolean).join(' · '), 'quiet'))
  const strip = make('div', '', 'strip')
  if (told.error) {
    strip.textContent = told.error
  } else {
    told.labels.forEach((label, place) => {
      const card = make('figure')
      card.append(screen(place, 132), make('figcaption', `${place + 1}. ${label}`, told.invalid[place] ? 'failure' : ''))
      card.onclick = () => go(place)
      strip.append(card)
    })
    const end = make('figure')
    end.append(screen(told.labels.length, 132), make('figcaption', 'end: ' + row[at.outcome], row[at.outcome]))
    end.onclick = () => go(told.labels.length)
    strip.append(end)
  }
  $('strip').replaceChildren(strip)
  go(Math.min(step, told.error ? 0 : told.labels.length), false)
}

function go(place, scroll = true) {
  step = place
  if (told.error) return $('step').replaceChildren()
  const last = told.labels.length
  const cards = $('strip').querySelectorAll('figure')
  cards.forEach((card, number) => card.classList.toggle('chosen', number === place))
  const strip = cards[place].parentNode
  if (scroll) strip.scrollLeft = cards[place].offsetLeft - strip.offsetLeft - strip.clientWidth / 2 + 66
  $('back').disabled = place === 0
  $('next').disabled = place === last
  $('where').textContent = place === last ? `after step ${last}` : `step ${place + 1} of ${last}`
  const facts = make('dl')
  const add = (name, value, title) => {
    const term = make('dt', name)
    if (title) term.title = title
    const cell = make('dd')
    cell.append(value)
    facts.append(term, cell)
  }
  if (place === last) {
    add('verdict', make('b', chosen[at.outcome], chosen[at.outcome]))
    add('reason', word(chosen, 'reason') || '–')
  } else {
    add('prompt', make('code', told.prompts[place]))
    add('action', make('code', told.actions[place]))
    if (told.invalid[place]) add('', make('b', 'not a valid action', 'failure'))
    const tokens = told.tokens[place]
    add('log-prob', `${number(told.logprobs[place])} over ${tokens} token${tokens === 1 ? '' : 's'} (probability ` +
      `${Math.exp(told.logprobs[place]).toPrecision(2)})`, 'of the whole action, under the policy that acted')
    const why = told.updates === null ? (word(chosen, 'split') === 'train' ? ' (not in an update so far)' : ' (evaluation: never learnt from)')
      : ` (in update ${told.updates})`
    add('value', number(told.values && told.values[place]) + why, 'V of the screen and prompt, in the last update that drew it')
    add('advantage', number(told.advantages && told.advantages[place]) + why, 'as that update used it: scaled and clipped; 0 for an invalid action')
    add('reward', number(told.rewards[place], 2))
    add('policy version', String(told.versions[place]))
  }
  const picture = pictures(chosen)
  if (!picture) add('screen', make('span', 'not in this page: report.py --screens embeds more; a run keeps the share --keep-screens', 'quiet'))
  else if (!JSON.parse(picture.textContent).real) add('screen', make('span', 'not kept; drawn are the 22 x 16 cells that the policy saw', 'quiet'))
  $('step').replaceChildren(screen(place, 230), facts)
  remember()
}

function neighbour(distance) {
  const place = found.indexOf(chosen) + distance
  if (found[place]) choose(found[place])
}

function remember() {  // in the address, so that a link or a reload comes back to it
  const state = new URLSearchParams()
  for (const name of FIELDS) {
    const value = name === 'screens' ? ($(name).checked ? '1' : '') : $(name).value
    if (value) state.set(name, value)
  }
  if (chosen) {
    state.set('id', chosen[at.id])
    if (step) state.set('step', step)
  }
  history.replaceState(null, '', '#' + state)
}

async function recall() {
  const state = new URLSearchParams(location.hash.slice(1))
  for (const name of FIELDS) {
    if (name === 'screens') $(name).checked = state.has(name)
    else $(name).value = state.get(name) || ''
  }
  filter()
  const row = state.has('id') ? index.rows.find(row => String(row[at.id]) === state.get('id')) : found.find(isReal) || found[0]
  if (row) await choose(row, +state.get('step') || 0)
}

for (const name of ['family', 'outcome', 'split']) {
  const values = name === 'outcome' ? ['success', 'failure', 'unjudged'] : [...index[name]].sort()
  for (const value of values) $(name).append(new Option(value, value))
}
for (const name of FIELDS) $(name).oninput = () => { filter(); remember() }
$('more').onclick = () => { shownRows += 1000; list() }
$('clear').onclick = () => { for (const name of FIELDS) { $(name).value = ''; $(name).checked = false } filter(); remember() }
$('back').onclick = () => go(step - 1)
$('next').onclick = () => go(step + 1)
$('earlier').onclick = () => neighbour(1)
$('later').onclick = () => neighbour(-1)
for (const link of document.querySelectorAll('a[data-task]')) link.onclick = event => {
  event.preventDefault()
  $('clear').onclick()
  $('text').value = link.dataset.task
  filter()
  if (found[0]) choose(found.find(isReal) || found.find(pictures) || found[0])
  $('trajectories').scrollIntoView()
}
let touched = 0
for (const kind of ['keydown', 'pointerdown', 'wheel']) addEventListener(kind, () => { touched = Date.now() })
addEventListener('keydown', event => {
  if (!told || told.error || event.ctrlKey || event.altKey || event.metaKey) return
  if (['INPUT', 'SELECT'].includes(event.target.tagName)) return
  if (event.key === 'ArrowRight' && step < told.labels.length) go(step + 1)
  else if (event.key === 'ArrowLeft' && step > 0) go(step - 1)
  else return
  event.preventDefault()
})
addEventListener('hashchange', () => location.hash.includes('=') ? recall() : remember())  // the links at the top
if (index.live) setInterval(() => { if (Date.now() - touched > 30000) location.reload() }, index.live * 1000)  // nobody is at it
recall()
