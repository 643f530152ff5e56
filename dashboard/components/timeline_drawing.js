// A canvas timeline of both sides: how it is drawn. Text of a trace goes in by textContent and fillText only.

const ROW = 19, AXIS = 26, HEAD = 26, GAP = 10, LANE = 4, MOST_ROWS = 120;
const NARROWEST_PS = 1000, PATIENCE_MS = 160;
const UNITS = [[1e12, 's'], [1e9, 'ms'], [1e6, 'µs'], [1e3, 'ns'], [1, 'ps']];

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function duration(ps) {
  if (!ps) return '0';
  const [size, unit] = UNITS.find(([each]) => Math.abs(ps) >= each * 0.9995) ?? UNITS.at(-1);
  const shown = Math.abs(ps) / size;
  return `${ps < 0 ? '−' : ''}${shown.toFixed(shown < 9.9995 ? 3 : shown < 99.995 ? 2 : 1)} ${unit}`;
}

function element(name, kind, parent, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  parent?.append(made);
  return made;
}

class Drawing {
  // Where the names of the lanes are.
  get gutter() {
    return this.width < 640 ? 84 : 156;
  }

  get plot() {
    return Math.max(this.width - this.gutter, 50);
  }

  x(ps) {
    return this.gutter + ((ps - this.window[0]) / (this.window[1] - this.window[0])) * this.plot;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  colours() {
    const found = {}, probe = element('span', '', this.root);
    for (const name of ['paper', 'raised', 'ink', 'dim', 'rule', 'muted', 'link', 'veil']) {
      probe.style.color = `var(--${name})`;
      found[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    return found;
  }

  // The fill of every family, made again where the theme has changed.
  fills() {
    const paper = this.colour.paper, dark = paper.match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) < 384;
    if (this.filled === this.dataset + paper) return;
    this.filled = this.dataset + paper;
    this.look = this.data.families.map(([, light, pattern, other]) => {
      const hex = (dark && other) || light, mix = dark && !other ? 0.15 : 0;
      const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).map((part) => Math.round(part + (255 - part) * mix));
      const bright = 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2] > 140;
      const fill = `rgb(${parts})`;
      return { plain: fill, fill: pattern ? this.pattern(fill, bright, pattern) : fill, ink: bright ? '#14171a' : '#ffffff' };
    });
    for (const button of this.legend.querySelectorAll('button')) {
      const pen = button.querySelector('canvas').getContext('2d');
      pen.setTransform(2, 0, 0, 2, 0, 0);
      pen.fillStyle = this.look[button.dataset.family].fill;
      pen.fillRect(0, 0, 18, 12);
    }
  }

  pattern(fill, bright, kind) {
    const tile = element('canvas'), pen = tile.getContext('2d'), size = 6;
    tile.width = tile.height = size;
    pen.fillStyle = fill;
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = pen.fillStyle = bright ? '#0000003a' : '#ffffff4d';
    pen.lineWidth = 1.4;
    const stroke = (...points) => {
      pen.beginPath();
      points.forEach(([x, y], index) => (index % 2 ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      pen.stroke();
    };
    if (kind === 'rising' || kind === 'crossed') stroke([-1, 1], [1, -1], [0, size], [size, 0], [size - 1, size + 1], [size + 1, size - 1]);
    if (kind === 'falling' || kind === 'crossed') stroke([-1, size - 1], [1, size + 1], [0, 0], [size, size], [size - 1, -1], [size + 1, 1]);
    if (kind === 'lined') stroke([0, 1.5], [size, 1.5], [0, 4.5], [size, 4.5]);
    if (kind === 'dotted') for (const [x, y] of [[1, 1], [4, 4]]) pen.fillRect(x, y, 1.5, 1.5);
    return this.pen.createPattern(tile, 'repeat');
  }

  paint() {
    const ratio = window.devicePixelRatio || 1, pen = this.pen, [start, end] = this.window, { sides, limits } = this.data;
    this.colour = this.colours();
    this.font = getComputedStyle(this.root).fontFamily;
    this.fills();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.colour.paper;
    pen.fillRect(0, 0, this.width, this.height);
    pen.textBaseline = 'middle';
    this.axis();
    for (const band of this.bands) this.row(band);
    sides.forEach((side, index) => this.frameOf(side, this.heads[index], index));
    const home = start === this.data.home[0] && end === this.data.home[1];
    this.shown.textContent = home ? `0 – ${duration(Math.max(...sides.map((side) => side.length)))}` : `${duration(start)} – ${duration(end)}`;
    const scale = 100 / (limits[1] - limits[0]);
    this.thumb.style.left = `min(${(start - limits[0]) * scale}%, calc(100% - 4px))`;
    this.thumb.style.width = `${(end - start) * scale}%`;
    this.whole.disabled = home;
    for (const button of this.legend.querySelectorAll('button'))
      button.setAttribute('aria-pressed', String(Number(button.dataset.family) === this.only));
  }

  axis() {
    const pen = this.pen, [start, end] = this.window, rough = ((end - start) / this.plot) * 110;
    const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const [size, unit] = UNITS.find(([each]) => Math.max(Math.abs(start), Math.abs(end)) >= each) ?? UNITS.at(-1);
    const decimals = Math.max(0, Math.round(Math.log10(size)) - Math.floor(Math.log10(step) + 1e-9));
    pen.font = `11px ${this.font}`;
    pen.textAlign = 'center';
    for (let tick = Math.ceil(start / step) * step; tick <= end; tick += step) {
      const x = Math.round(this.x(tick)) + 0.5;
      pen.strokeStyle = this.colour.rule;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(x, AXIS - 5);
      pen.lineTo(x, this.height);
      pen.stroke();
      pen.fillStyle = this.colour.dim;
      const text = tick ? `${tick < 0 ? '−' : ''}${(Math.abs(tick) / size).toFixed(decimals)} ${unit}` : '0';
      const half = pen.measureText(text).width / 2;
      if (x - half > this.gutter - 20 && x + half < this.width) pen.fillText(text, x, AXIS / 2 - 1);
    }
  }

  row(band) {
    const pen = this.pen, detail = this.detail, columns = detail.sides[band.side];
    const from = this.x(detail.range[0]), to = this.x(detail.range[1]);
    const clipped = (left, right, sample) => {
      if (right <= left) return;
      pen.save();
      pen.beginPath();
      pen.rect(left, band.y, right - left, ROW);
      pen.clip();
      this.spans(band, sample);
      pen.restore();
    };
    if (this.overview && (from > this.gutter || to < this.width)) {
      const coarse = this.overview.sides[band.side];
      clipped(this.gutter, Math.min(from, this.width), coarse);
      clipped(Math.max(to, this.gutter), this.width, coarse);
    }
    clipped(Math.max(from, this.gutter), Math.min(to, this.width), columns);
  }

  spans(band, columns) {
    const pen = this.pen, [start, end] = this.window, scale = this.plot / (end - start), { family, op, busy, count } = columns;
    const chosen = this.chosen?.side === band.side ? this.chosen : null;
    pen.font = `11px ${this.font}`;
    pen.textAlign = 'left';
    for (let at = columns.from[band.row]; at < columns.from[band.row + 1]; at++) {
      if (columns.end[at] < start) continue;
      if (columns.start[at] > end) break;
      const left = this.gutter + Math.max(columns.start[at] - start, -2 * (end - start)) * scale;
      const right = this.gutter + Math.min(columns.end[at] - start, 3 * (end - start)) * scale;
      const width = Math.max(right - left, 1), look = this.look[family[at]];
      const faint = this.only !== null && this.only !== family[at];
      const full = count[at] > 1 ? 0.4 + 0.6 * Math.min(busy[at] / Math.max(columns.end[at] - columns.start[at], 1), 1) : 1;
      pen.globalAlpha = faint ? 0.12 : full;
      pen.fillStyle = look.fill;
      pen.fillRect(left, band.y + 1, width > 3 ? width - 0.6 : width, ROW - 2);
      pen.globalAlpha = 1;
      const seen = Math.max(left, this.gutter), room = Math.min(right, this.width) - seen - 8;
      if (room > 26 && !faint && op[at] >= 0) {
        const text = this.fitted(this.ops[band.side].get(op[at])?.[1] ?? '', room);
        if (look.fill !== look.plain && text) { // no pattern behind letters
          pen.fillStyle = look.plain;
          pen.fillRect(seen + 2, band.y + 3, pen.measureText(text).width + 4, ROW - 6);
        }
        pen.fillStyle = look.ink;
        pen.fillText(text, seen + 4, band.y + ROW / 2 + 0.5);
      }
      const same = chosen && chosen.op === op[at], exact = same && chosen.start === columns.start[at];
      if (exact || (same && width > 3) || this.over === `${band.side} ${band.row} ${columns.start[at]}`) {
        pen.strokeStyle = this.colour.ink;
        pen.lineWidth = exact ? 3 : 1;
        pen.strokeRect(left + 0.5, band.y + 1.5, Math.max(width - 1, 1), ROW - 3);
      }
    }
  }

  // As much of a text as there is room for, in the pen's font.
  fitted(text, room) {
    const { pen } = this, whole = pen.measureText(text).width;
    if (whole <= room) return text;
    let letters = Math.floor((text.length * room) / whole);
    while (letters > 2 && pen.measureText(`${text.slice(0, letters)}…`).width > room) letters--;
    return letters > 2 ? `${text.slice(0, letters)}…` : '';
  }

  frameOf(side, { top, bottom }, index) {
    const pen = this.pen, from = this.x(0), to = this.x(side.length);
    pen.fillStyle = this.colour.veil; // what is not of the step stands back
    if (from > this.gutter) pen.fillRect(this.gutter, top + HEAD, Math.min(from, this.width) - this.gutter, bottom - top - HEAD);
    if (to < this.width) pen.fillRect(Math.max(to, this.gutter), top + HEAD, this.width - Math.max(to, this.gutter), bottom - top - HEAD);
    pen.strokeStyle = this.colour.ink;
    pen.lineWidth = 1.2;
    for (const [x, dash] of [[from, []], [to, [4, 3]]]) {
      if (x < this.gutter - 1 || x > this.width) continue;
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(Math.round(x) + 0.5, top + HEAD);
      pen.lineTo(Math.round(x) + 0.5, bottom);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.fillStyle = this.colour.raised;
    pen.fillRect(0, top, this.width, HEAD - 4);
    pen.fillStyle = this.colour.paper;
    pen.fillRect(0, top + HEAD - 4, this.gutter, bottom - top - HEAD + 8);
    pen.textAlign = 'left';
    pen.fillStyle = this.colour.ink;
    pen.font = `600 12.5px ${this.font}`;
    pen.fillText(side.title, 8, top + (HEAD - 4) / 2 + 0.5);
    const after = 8 + pen.measureText(side.title).width + 8;
    pen.fillStyle = this.colour.dim;
    pen.font = `12px ${this.font}`;
    pen.fillText(this.fitted(side.words, this.width - after), after, top + (HEAD - 4) / 2 + 0.5);
    pen.font = `11.5px ${this.font}`;
    for (const band of this.bands)
      if (band.side === index) {
        pen.fillStyle = band.depth ? this.colour.muted : this.colour.ink;
        pen.fillText(band.depth ? '' : this.fitted(band.name, this.gutter - 16), 8, band.y + ROW / 2 + 0.5);
      }
    const left = side.rows.length - MOST_ROWS, remark = !side.rows.length ? side.none : left > 0 ? `${left} rows more, see Perfetto` : '';
    if (remark) {
      pen.fillStyle = this.colour.dim;
      pen.fillText(remark, 8, bottom - ROW / 2);
    }
  }
}
