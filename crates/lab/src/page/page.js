'use strict';
// Everything that the page does by itself: tables that sort and filter, and plots of what is in
// the JSON block. What is chosen stands behind the # of the address, as `name=value&...`.

const data = JSON.parse(document.getElementById('data').textContent);
const at = (id) => document.getElementById(id);

function make(name, attributes = {}, ...children) {
  const isSvg = ['svg', 'g', 'rect', 'line', 'text', 'circle', 'title'].includes(name);
  const element = isSvg
    ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Four digits are enough to compare by.
function digits(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e9 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function shown([mean, half]) {
  return half === null ? digits(mean) : `${digits(mean)} ± ${digits(half)}`;
}

// A table of rows, each with a text or a number for each column. `columns`: {name, title, of, cell,
// isNumber}.
class Table {
  constructor(element, columns, rows, chosen) {
    Object.assign(this, { element, columns, rows, chosen });
  }

  draw(filter) {
    const { sort, direction } = this.chosen();
    const column = this.columns.find((one) => one.name === sort);
    let rows = this.rows.filter(filter);
    if (column) {
      const sign = direction === 'down' ? -1 : 1;
      rows = rows.map((row) => [column.of(row), row]);
      // What has no value stands last, in either order.
      rows.sort(([a], [b]) => {
        if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
        return sign * (column.isNumber ? a - b : String(a).localeCompare(String(b)));
      });
      rows = rows.map(([, row]) => row);
    }
    const head = this.columns.map((one) => {
      const button = make('button', { type: 'button', title: one.title ?? '' }, one.name);
      button.addEventListener('click', () => {
        const turns = one.name === sort && direction !== 'down';
        this.chosen({ sort: one.name, direction: turns ? 'down' : 'up' });
      });
      const order = direction === 'down' ? 'descending' : 'ascending';
      return make('th', { 'aria-sort': one.name === sort ? order : 'none' }, button);
    });
    const body = rows.map((row) => make('tr', {}, ...this.columns.map((one) => {
      const cell = make('td', one.isNumber ? { class: 'number' } : {});
      const content = one.cell ? one.cell(row) : one.of(row);
      if (content !== undefined) cell.append(content);
      return cell;
    })));
    this.element.replaceChildren(
      make('thead', {}, make('tr', {}, ...head)),
      make('tbody', {}, ...body),
    );
    return rows.length;
  }
}

function hasWords(row, columns, words) {
  const text = columns.map((one) => one.of(row) ?? '').join(' ').toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

// What is chosen.
const defaults = {
  medium: '', workload: '', system: '', words: '', sort: '', direction: 'up',
  numbers: 'durable,p50,p99,p99.9,home,device.home,erases,wear.most,memory,recovery',
  'plot-number': 'durable', 'plot-medium': data.media[0].name, 'plot-ratio': 'yes',
};
const choice = { ...defaults };

function read() {
  Object.assign(choice, defaults);
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (name in defaults) choice[name] = value;
  }
}

function choose(changes) {
  Object.assign(choice, changes);
  const said = Object.entries(choice).filter(([name, value]) => value !== defaults[name]);
  history.replaceState(null, '', `#${new URLSearchParams(said)}`);
  draw();
}

// The cells.
const names = {
  medium: (cell) => data.media[cell.medium].name,
  workload: (cell) => data.workloads[cell.workload].name,
  system: (cell) => data.systems[cell.system].name,
};

function cellColumns() {
  const numbers = choice.numbers.split(',').filter(Boolean);
  const known = data.numbers.filter((one) => numbers.includes(one.name));
  const ofNumbers = known.map((one) => ({
    name: one.name,
    title: one.unit ? `${one.what} (${one.unit})` : one.what,
    isNumber: true,
    of: (cell) => cell.values?.[one.name]?.[0],
    cell: (cell) => cell.values?.[one.name] && shown(cell.values[one.name]),
  }));
  const ratio = {
    name: 'ratio',
    title: 'time until durable, as a multiple of that of jbd2 with data=ordered',
    isNumber: true,
    of: (cell) => cell.values?.durable?.[2] ?? undefined,
    cell: (cell) => (cell.values?.durable?.[2] === undefined ? undefined
      : shown(cell.values.durable.slice(2))),
  };
  const command = {
    name: 'command',
    title: 'what makes the cell again',
    of: (cell) => cell.command ?? cell.why,
    cell: (cell) => (cell.why
      ? make('span', { class: cell.failed ? 'failed' : 'why' }, cell.why)
      : make('code', {}, cell.command)),
  };
  const seeds = { name: 'seeds', isNumber: true, of: (cell) => cell.seeds };
  const named = Object.entries(names).map(([name, of]) => ({ name, of }));
  return [...named, ratio, ...ofNumbers, seeds, command];
}

function drawCells() {
  const columns = cellColumns();
  const table = new Table(at('cell-table'), columns, data.cells, (changes) => {
    if (changes) choose(changes);
    return choice;
  });
  const count = table.draw((cell) => Object.entries(names).every(([name, of]) => (
    choice[name] === '' || of(cell) === choice[name]
      || of(cell).split(':')[0] === choice[name])) && hasWords(cell, columns, choice.words));
  at('count').textContent = `${count} of ${data.cells.length} cells.`;
}

// Colours that everybody tells apart (Okabe, Ito, Color Universal Design, 2008), and three more.
const colours = ['#999999', '#e69f00', '#56b4e9', '#009e73', '#0072b2', '#cc79a7', '#d55e00',
  '#b8a800', '#7a5230', '#882255', '#44aa99'];

// A rounded number at or above the most, for the top of an axis.
function ceiling(most) {
  const size = 10 ** Math.floor(Math.log10(most || 1));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((n) => n * size).find((n) => n >= most) ?? 10 * size;
}

function drawPlot() {
  const number = data.numbers.find((one) => one.name === choice['plot-number']) ?? data.numbers[0];
  const isRatio = choice['plot-ratio'] === 'yes';
  const from = isRatio ? 2 : 0;
  const cells = data.cells.filter((cell) => names.medium(cell) === choice['plot-medium']
    && typeof cell.values?.[number.name]?.[from] === 'number');
  const systems = data.systems.map((_, n) => n).filter((n) => cells.some((c) => c.system === n));
  const [width, height, left, bottom] = [1200, 420, 60, 60];
  const legend = 20 * Math.ceil(systems.length / 5) + 10;
  const value = (cell) => cell.values[number.name].slice(from, from + 2);
  const most = ceiling(Math.max(0, ...cells.map((cell) => value(cell)[0] + (value(cell)[1] ?? 0))));
  const y = (n) => legend + (height - legend - bottom) * (1 - Math.min(n, most) / most);
  const unit = isRatio ? 'multiple' : number.unit;
  const svg = make('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img',
    'aria-label': `${number.name} on ${choice['plot-medium']}` });
  for (let n = 0; n <= 5; n += 1) {
    const at = (n * most) / 5;
    svg.append(make('line', { x1: left, x2: width, y1: y(at), y2: y(at), stroke: '#8886' }),
      make('text', { x: left - 6, y: y(at) + 4, 'text-anchor': 'end', 'font-size': 12 },
        digits(at)));
  }
  svg.append(make('text', { x: 4, y: legend - 6, 'font-size': 12 }, unit));
  systems.forEach((system, n) => {
    const [x, row] = [left + 40 + (n % 5) * 220, 14 + 20 * Math.floor(n / 5)];
    const fill = colours[system % 11];
    svg.append(make('rect', { x, y: row - 10, width: 12, height: 12, fill }),
      make('text', { x: x + 18, y: row, 'font-size': 13 }, data.systems[system].name));
  });
  const group = (width - left) / data.workloads.length;
  const bar = (0.84 * group) / Math.max(1, systems.length);
  data.workloads.forEach((workload, w) => {
    const start = left + w * group;
    svg.append(make('text', { x: start + group / 2, y: height - bottom + 18,
      'text-anchor': 'middle', 'font-size': 12 }, workload.name));
    systems.forEach((system, n) => {
      const cell = cells.find((one) => one.workload === w && one.system === system);
      if (!cell) return;
      const [mean, half] = value(cell);
      const x = start + 0.08 * group + n * bar;
      svg.append(make('rect', { class: 'bar', x, y: y(mean), width: bar * 0.92,
        height: Math.max(0.5, y(0) - y(mean)), fill: colours[system % 11] },
      make('title', {}, `${names.system(cell)}, ${workload.name}: ${shown(value(cell))} ${unit}`)));
      if (half) {
        const middle = x + bar * 0.46;
        svg.append(make('line', { class: 'interval', x1: middle, x2: middle, y1: y(mean + half),
          y2: y(Math.max(0, mean - half)), stroke: 'currentColor' }));
      }
    });
  });
  if (isRatio) {
    svg.append(make('line', { x1: left, x2: width, y1: y(1), y2: y(1), stroke: '#d55e00',
      'stroke-width': 2, 'stroke-dasharray': '6 4' }));
  }
  at('plot-place').replaceChildren(svg);
}

// The claims: those that have a figure of the paper's and one of ours as points in bands.
function drawClaims() {
  const claims = data.claims.filter((claim) => claim.ratio !== null);
  const [left, width, row] = [430, 1200, 20];
  const height = row * claims.length + 40;
  // From a fourth to four times, by the logarithm.
  const share = (ratio) => (Math.log2(Math.min(4, Math.max(0.25, ratio))) + 2) / 4;
  const x = (ratio) => left + (width - left - 40) * share(ratio);
  const svg = make('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img',
    'aria-label': 'our figures by the papers\'' });
  for (const tick of [0.25, 0.5, 1, 2, 4]) {
    svg.append(make('line', { x1: x(tick), x2: x(tick), y1: 20, y2: height - 10, stroke: '#8886' }),
      make('text', { x: x(tick), y: 14, 'text-anchor': 'middle', 'font-size': 12 }, `${tick}`));
  }
  claims.forEach((claim, n) => {
    const y = 30 + n * row;
    const [low, high] = [x(claim.band[0]), x(claim.band[1])];
    const colour = { reached: '#009e73', settled: '#0072b2', 'not determined': '#e69f00',
      contradicted: '#d55e00' }[claim.standing] ?? '#999999';
    svg.append(
      make('text', { x: left - 12, y: y + 4, 'text-anchor': 'end', 'font-size': 12 }, claim.id),
      make('rect', { class: 'band', x: low, y: y - 7, width: Math.max(2, high - low), height: 14,
        fill: '#56b4e9', opacity: 0.35 }),
      make('circle', { class: 'point', cx: x(claim.ratio), cy: y, r: 5, fill: colour },
        make('title', {}, `${claim.says} Here: ${claim.ours} (${claim.standing})`)),
    );
  });
  at('claim-place').replaceChildren(claims.length ? svg : '');
}

function words(id, columns, rows) {
  const chosen = { sort: '', direction: 'up' };
  const known = columns.map((name) => ({ name, of: (row) => row[name] }));
  const table = new Table(at(`${id}-table`), known, rows, (changes) => {
    if (changes) {
      Object.assign(chosen, changes);
      redraw();
    }
    return chosen;
  });
  const redraw = () => table.draw((row) => hasWords(row, table.columns, at(`${id}-words`).value));
  at(`${id}-words`).addEventListener('input', redraw);
  redraw();
}

function options(id, all, isAny) {
  const first = isAny ? [make('option', { value: '' }, 'any')] : [];
  at(id).append(...first, ...all.map((name) => make('option', { value: name }, name)));
  at(id).addEventListener('change', () => {
    const several = [...at(id).selectedOptions].map((option) => option.value).join(',');
    choose({ [id]: several });
  });
}

function draw() {
  for (const id of ['medium', 'workload', 'system', 'words', 'plot-number', 'plot-medium']) {
    at(id).value = choice[id];
  }
  at('plot-ratio').checked = choice['plot-ratio'] === 'yes';
  const numbers = choice.numbers.split(',');
  for (const option of at('numbers').options) option.selected = numbers.includes(option.value);
  drawCells();
  drawPlot();
}

const schemes = data.systems.map((system) => system.name.split(':')[0]);
options('medium', data.media.map((one) => one.name), true);
options('workload', data.workloads.map((one) => one.name), true);
options('system', [...new Set([...schemes, ...data.systems.map((one) => one.name)])], true);
options('numbers', data.numbers.map((one) => one.name), false);
options('plot-number', data.numbers.map((one) => one.name), false);
options('plot-medium', data.media.map((one) => one.name), false);
at('words').addEventListener('input', () => choose({ words: at('words').value }));
at('plot-ratio').addEventListener('change', () => (
  choose({ 'plot-ratio': at('plot-ratio').checked ? 'yes' : 'no' })));
for (const form of document.forms) {
  form.addEventListener('submit', (event) => event.preventDefault());
}
// A link to a section is none to a choice.
const isChoice = () => location.hash === '' || location.hash.includes('=');
window.addEventListener('hashchange', () => {
  if (isChoice()) {
    read();
    draw();
  }
});
if (isChoice()) read();
draw();
words('claim',
  ['id', 'paper', 'place', 'says', 'bound', 'until', 'ours', 'standing', 'why'],
  data.claims);
words('assumption',
  ['paper', 'parameter', 'paper_says', 'ours', 'range', 'source', 'moves'],
  data.assumptions);
drawClaims();
// That each plot is a picture is seen from outside by its width.
window.addEventListener('load', () => {
  for (const image of document.images) image.dataset.width = image.naturalWidth;
});
