// A canvas timeline of both sides: what is done with it. It zooms and pans at once with the spans that it has; the window
// is reported, and the server answers with a finer sample.

class Timeline extends Drawing {
  constructor(root) {
    super();
    this.root = root;
    this.dataset = null;
    this.window = [0, 1];
    this.only = null; // the family that stands out
    this.chosen = null;
    this.over = null;
    this.frame = 0;
    this.build();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.sheet);
  }

  // --- the page -----------------------------------------------------------------------------------------------------

  build() {
    const tools = element('div', 'tools', this.root);
    const button = (text, title, act) => {
      const made = element('button', '', tools, text);
      made.type = 'button';
      made.title = title;
      made.setAttribute('aria-label', title);
      made.addEventListener('click', act);
      return made;
    };
    button('+', 'Zoom in', () => this.zoom(0.5));
    button('−', 'Zoom out', () => this.zoom(2));
    button('←', 'To the left', () => this.pan(-0.4));
    button('→', 'To the right', () => this.pan(0.4));
    this.whole = button('Whole step', 'The whole step', () => this.show(...this.data.home));
    this.shown = element('span', 'shown', tools);
    this.shown.setAttribute('aria-live', 'polite');
    const keys = element('span', 'keys', tools);
    for (const part of ['wheel or ', ['w'], ['s'], 'zoom\u2003drag or ', ['a'], ['d'], 'pan\u2003', ['0'], 'whole step'])
      Array.isArray(part) ? element('kbd', '', keys, part[0]) : keys.append(part);
    this.place = element('div', 'place', this.root);
    this.thumb = element('i', '', this.place);
    this.sheet = element('div', 'sheet', this.root);
    this.sheet.tabIndex = 0;
    this.sheet.setAttribute('role', 'group');
    this.canvas = element('canvas', '', this.sheet);
    this.canvas.setAttribute('role', 'img');
    this.pen = this.canvas.getContext('2d');
    this.tip = element('div', 'tip', this.sheet);
    this.tip.hidden = true;
    this.legend = element('ul', 'legend', this.root);
    this.legend.setAttribute('aria-label', 'Families');
  }

  listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.sheet.addEventListener('wheel', (event) => {
      const sideways = event.shiftKey ? event.deltaY : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
      const step = event.deltaMode === 1 ? 30 : 1;
      const before = String(this.window);
      if (sideways) this.pan((sideways * step) / this.plot);
      else this.zoom(Math.exp(clamp(event.deltaY * step, -300, 300) * 0.0022), at(event)[0]);
      if (String(this.window) !== before) event.preventDefault(); // at its limits the page scrolls
    }, { passive: false });
    let held = null;
    this.sheet.addEventListener('pointerdown', (event) => {
      if (event.button) return;
      held = { x: at(event)[0], window: [...this.window], moved: false };
    });
    this.sheet.addEventListener('pointermove', (event) => {
      const [x, y] = at(event);
      if (!held) return this.hover(x, y);
      if (Math.abs(x - held.x) > 3 && !held.moved) {
        held.moved = true;
        this.sheet.setPointerCapture(event.pointerId);
        this.sheet.classList.add('held');
        this.hide();
      }
      if (held.moved) {
        const by = ((held.x - x) / this.plot) * (held.window[1] - held.window[0]);
        this.show(held.window[0] + by, held.window[1] + by);
      }
    });
    const release = (event) => {
      if (held && !held.moved && event.type === 'pointerup') this.click(...at(event));
      held = null;
      this.sheet.classList.remove('held');
    };
    this.sheet.addEventListener('pointerup', release);
    this.sheet.addEventListener('pointercancel', release);
    this.sheet.addEventListener('pointerleave', () => this.hide());
    this.sheet.addEventListener('keydown', (event) => {
      const acts = {
        w: () => this.zoom(0.6), s: () => this.zoom(1 / 0.6), '+': () => this.zoom(0.6), '-': () => this.zoom(1 / 0.6),
        a: () => this.pan(-0.2), d: () => this.pan(0.2), ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2),
        0: () => this.show(...this.data.home), Home: () => this.show(...this.data.home), Escape: () => this.choose(null),
      };
      const act = event.ctrlKey || event.metaKey || event.altKey ? null : acts[event.key.length > 1 ? event.key : event.key.toLowerCase()];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation(); // Streamlit has shortcuts of its own
      act();
    });
    this.place.addEventListener('click', (event) => {
      const box = this.place.getBoundingClientRect(), [low, high] = this.data.limits;
      const middle = low + ((event.clientX - box.left) / box.width) * (high - low), half = (this.window[1] - this.window[0]) / 2;
      this.show(middle - half, middle + half);
    });
  }

  // --- what the server says -----------------------------------------------------------------------------------------

  update(data, report) {
    this.report = report;
    this.data = data;
    if (data.key !== this.dataset) {
      this.dataset = data.key;
      this.window = [...data.window];
      this.overview = null;
      this.ops = data.sides.map(() => new Map());
      this.only = null;
      this.over = null;
    }
    data.sides.forEach((side, index) => side.ops.forEach((op) => this.ops[index].set(op[0], op)));
    if (data.overview) this.overview = this.indexed(data.overview);
    this.detail = this.indexed(data.detail);
    this.chosen = data.span;
    this.sheet.setAttribute('aria-label', 'Timeline. Keys: w and s zoom, a and d pan, 0 shows the whole step.');
    this.canvas.setAttribute('aria-label', data.alt);
    this.arrange();
    this.explain();
    this.resize();
  }

  // Where each row begins in the columns of a sample.
  indexed(sample) {
    sample.sides.forEach((columns, index) => {
      const rows = this.data.sides[index].rows.length;
      columns.from = new Array(rows + 1).fill(columns.row.length);
      for (let at = columns.row.length - 1; at >= 0; at--) columns.from[columns.row[at]] = at;
      for (let row = rows - 1; row >= 0; row--) if (columns.row[columns.from[row]] !== row) columns.from[row] = columns.from[row + 1];
    });
    return sample;
  }

  // The y of every side and row.
  arrange() {
    let y = AXIS;
    this.bands = [];
    this.heads = this.data.sides.map((side, index) => {
      const top = y;
      y += HEAD;
      side.rows.slice(0, MOST_ROWS).forEach(([name, depth], row) => {
        if (!depth && row) y += LANE;
        this.bands.push({ side: index, row, y, name, depth });
        y += ROW;
      });
      if (!side.rows.length || side.rows.length > MOST_ROWS) y += ROW; // for a remark
      y += GAP;
      return { top, bottom: y - GAP };
    });
    this.height = y;
  }

  explain() {
    const time = new Map();
    for (const columns of (this.overview ?? this.detail).sides)
      columns.family.forEach((family, at) => time.set(family, (time.get(family) ?? 0) + columns.busy[at]));
    const order = [...time.keys()].sort((a, b) => time.get(b) - time.get(a));
    if (String(order) === this.explained) return;
    this.explained = String(order);
    this.legend.replaceChildren();
    for (const family of order) {
      const button = element('button', '', element('li', '', this.legend));
      button.type = 'button';
      button.title = 'Make it stand out';
      const swatch = element('canvas', '', button);
      swatch.width = 36;
      swatch.height = 24;
      button.append(this.data.families[family][0]);
      button.dataset.family = family;
      button.addEventListener('click', () => {
        this.only = this.only === family ? null : family;
        this.draw();
      });
    }
  }

  // --- the window ---------------------------------------------------------------------------------------------------

  zoom(factor, x = this.gutter + this.plot / 2) {
    const [start, end] = this.window, share = clamp((x - this.gutter) / this.plot, 0, 1);
    const length = Math.max((end - start) * factor, NARROWEST_PS), middle = start + (end - start) * share;
    this.show(middle - length * share, middle + length * (1 - share));
  }

  pan(share) {
    const by = (this.window[1] - this.window[0]) * share;
    this.show(this.window[0] + by, this.window[1] + by);
  }

  show(start, end) {
    const [low, high] = this.data.limits;
    const length = clamp(Math.round(end - start), Math.min(NARROWEST_PS, high - low), high - low);
    start = Math.round(clamp(start, low, high - length));
    if (start === this.window[0] && start + length === this.window[1]) return;
    this.window = [start, start + length];
    this.hide();
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), PATIENCE_MS);
  }

  ask() {
    const [start, end] = this.window;
    this.report('window', { of: this.dataset, start, end, pixels: Math.round(this.plot), whole: Boolean(this.overview) });
  }

  resize() {
    const width = this.sheet.clientWidth, ratio = window.devicePixelRatio || 1;
    if (!this.data || !width) return;
    if (width !== this.width || this.canvas.height !== Math.round(this.height * ratio)) {
      this.width = width;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${this.height}px`;
    }
    cancelAnimationFrame(this.frame);
    this.paint(); // at once: a canvas of a new size is empty
  }

  // --- what is under the pointer --------------------------------------------------------------------------------------

  find(x, y) {
    const band = x < this.gutter ? null : this.bands.find((each) => y >= each.y && y < each.y + ROW);
    if (!band) return null;
    const [start, end] = this.window, reach = (end - start) / this.plot, ps = start + ((x - this.gutter) / this.plot) * (end - start);
    const inside = (sample) => ps >= sample.range[0] && ps < sample.range[1];
    const sample = inside(this.detail) || !this.overview ? this.detail : this.overview;
    const columns = sample.sides[band.side];
    let low = columns.from[band.row], high = columns.from[band.row + 1];
    const first = low;
    while (low < high) { // the first that begins after the pointer
      const middle = (low + high) >> 1;
      if (columns.start[middle] <= ps + reach / 2) low = middle + 1;
      else high = middle;
    }
    const at = low - 1;
    return at >= first && ps <= Math.max(columns.end[at], columns.start[at] + reach) + reach / 2 ? { band, columns, at } : null;
  }

  hover(x, y) {
    const found = this.find(x, y);
    this.sheet.classList.toggle('over', found !== null);
    const label = x < this.gutter ? this.bands.find((each) => y >= each.y && y < each.y + ROW) : null;
    if (!found && !label) return this.hide();
    const { side } = found?.band ?? label, estimated = this.data.sides[side].estimated ? ' (est.)' : '';
    this.tip.replaceChildren();
    const line = (text, kind) => text && element('p', kind, this.tip, text);
    if (label) line(label.name);
    else {
      const { band, columns, at } = found, family = this.data.families[columns.family[at]][0], op = this.ops[side].get(columns.op[at]);
      const when = `at ${duration(columns.start[at])}, ${band.name}`;
      if (op) {
        line(op[1]);
        line(op[2] ? `${family} · ${op[2]}` : family);
        line(`${duration(columns.busy[at])}${estimated} ${when}`);
        line(op[3], 'minor');
        line(op[4], 'minor');
      } else {
        line(`${columns.count[at].toLocaleString('en')} spans`);
        line(columns.busy[at] ? `most of the time: ${family}` : 'of no length');
        line(`${duration(columns.busy[at])}${estimated} ${when}`);
        line('click to zoom in', 'minor');
      }
    }
    this.tip.hidden = false;
    const box = this.tip.getBoundingClientRect();
    this.tip.style.left = `${clamp(x + 14, 4, Math.max(this.width - box.width - 6, 4))}px`;
    this.tip.style.top = `${y + 18 + box.height < this.height ? y + 18 : Math.max(y - box.height - 12, 4)}px`;
    const over = found && `${side} ${found.band.row} ${found.columns.start[found.at]}`;
    if (over !== this.over) {
      this.over = over;
      this.draw();
    }
  }

  hide() {
    this.tip.hidden = true;
    this.sheet.classList.remove('over');
    if (this.over) {
      this.over = null;
      this.draw();
    }
  }

  click(x, y) {
    const found = this.find(x, y);
    if (!found) return this.chosen && this.choose(null);
    const { band, columns, at } = found;
    if (columns.op[at] >= 0)
      return this.choose({ side: band.side, op: columns.op[at], start: columns.start[at], duration: columns.busy[at] });
    const room = Math.max((columns.end[at] - columns.start[at]) * 2, NARROWEST_PS);
    return this.show(columns.start[at] - room / 2, columns.end[at] + room / 2);
  }

  choose(span) {
    this.chosen = span;
    this.draw();
    this.report('span', { of: this.dataset, ...(span ?? { op: -1 }) });
  }
}

export default function ({ data, parentElement, setStateValue }) {
  let root = parentElement.querySelector('.timeline');
  if (!root) {
    root = element('div', 'timeline', parentElement);
    root.drawing = new Timeline(root);
  }
  root.drawing.update(data, setStateValue);
}
