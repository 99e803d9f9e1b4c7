
/* page.js - the plots of the report of `ab`, and sorting and filtering of its table of ops. It draws what the JSON in the page
 * says and asks nobody for anything. Text of the result only ever becomes text nodes and attribute values, never markup.
 * SPDX-License-Identifier: MIT */
(() => {
  'use strict';
  const NS = 'http:' + '//www.w3.org/2000/svg';
  const $ = (id) => document.getElementById(id);
  const list = (v) => (Array.isArray(v) ? v : []);
  const object = (v) => (v && typeof v === 'object' && !Array.isArray(v) ? v : {});
  const text = (v) => (typeof v === 'string' ? v : '');
  const finite = (v) => typeof v === 'number' && Number.isFinite(v);

  /* ---- elements ---- */

  const fill = (node, attributes, children) => {
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    for (const child of children) node.append(child);
    return node;
  };
  const html = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes, ...children) => fill(document.createElementNS(NS, name), attributes, children);

  /* ---- numbers, as ab_html_top.c writes them ---- */

  const number = (v) => {
    if (!finite(v)) return '–';
    let s = Number.isInteger(v) && Math.abs(v) < 1e6 ? String(v) : null;
    if (s === null) {
      const e = v === 0 ? 0 : Math.floor(Math.log10(Math.abs(Number(v.toPrecision(3)))));
      s = e < -4 || e >= 3 ? v.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e') : String(Number(v.toPrecision(3)));
    }
    return s.replace(/-/g, '−');
  };
  const scaled = (v, step, units) => {
    let i = 0;
    while (i + 1 < units.length && Math.abs(v) >= step * 0.9995) { v /= step; ++i; }
    return finite(v) ? number(v) + '\u00a0' + units[i] : '–';
  };
  const us = (v) => scaled(v, 1000, ['µs', 'ms', 's']);
  const bytes = (v) => scaled(v, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);
  const flops = (v) => scaled(v, 1000, ['FLOP', 'kFLOP', 'MFLOP', 'GFLOP', 'TFLOP']);
  const rate = (v, unit) => scaled(v, 1000, [unit, 'k' + unit, 'M' + unit, 'G' + unit, 'T' + unit]);
  const times = (v) => (v === Infinity ? '∞' : number(v) + '\u00a0×');
  const power_of_ten = (v) => '10' + String(Math.round(Math.log10(v))).replace(/[-0-9]/g, (c) => (c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[c]));
  const token = (id, label) => (finite(id) ? String(id) : '–') + (label ? ' “' + label + '”' : '');

  const result = object(JSON.parse($('data').textContent));
  const ops = list(result.ops).map(object);
  const first = result.first_difference ? object(result.first_difference) : null;

  /* ---- the note beside the pointer ---- */

  const tip = $('tip');
  const show_tip = (lines, x, y) => {
    tip.replaceChildren(...lines.map((line) => html('div', {}, line)));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(x + 14, innerWidth - box.width - 6), top = y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18;
    tip.style.left = Math.max(6, left) + 'px';
    tip.style.top = Math.max(6, top) + 'px';
  };
  const hide_tip = () => { tip.hidden = true; };
  addEventListener('scroll', hide_tip, {passive: true});
  addEventListener('keydown', (event) => { if (event.key === 'Escape') hide_tip(); });

  /* Draws now and again whenever the width of the element changes. */
  const on_width = (node, draw) => {
    let width = 0;
    const look = () => {
      const now = Math.floor(node.getBoundingClientRect().width);
      if (now > 0 && now !== width) { width = now; draw(width); }
    };
    look();
    new ResizeObserver(look).observe(node);
  };

  /* ---- one op ---- */

  const in_layer = (op) => finite(op.layer) && op.layer >= 0;
  const short_tap = (op) => text(op.tap).replace(/^blk\.\d+\./, '');
  const name_of = (op) => [text(op.slot), text(op.op)].filter(Boolean).join('.') || text(op.tap) || 'op';
  const place_of = (op) => name_of(op) + (in_layer(op) ? ', layer ' + op.layer : '');
  const status_of = (op) => (op.status === 'fail' && op.made_here === false ? 'inherited' : text(op.status));
  const failed = (op) => status_of(op) === 'fail' || status_of(op) === 'inherited';
  const n_flips = (op) => (finite(op.n_flips) ? op.n_flips : list(op.flips).length);
  const worst_of = (op) => (finite(op.worst_row) ? op.worst_row : op.worst_pos);
  const not_finite = (op) => failed(op) && op.norm_rel === null && n_flips(op) === 0;
  const ratio_of = (op) => {
    if (not_finite(op)) return Infinity;
    if (!finite(op.norm_rel) || !finite(op.baseline_norm_rel)) return NaN;
    if (op.norm_rel === 0) return n_flips(op) > 0 ? NaN : 0; /* ids have no norm */
    /* No baseline was made where an op is right without one. */
    return op.baseline_norm_rel > 0 ? op.norm_rel / op.baseline_norm_rel : failed(op) ? Infinity : NaN;
  };
  /* The colour: 0..3 within the bound, 4..6 beyond it, 7 not finite, x no number. What the verdict says decides between the
   * two halves, because the bound also allows one unit in the last place and looks at every element. */
  const shade_of = (op) => {
    if (not_finite(op)) return '7';
    const r = ratio_of(op);
    if (failed(op)) return r > 100 ? '6' : r > 10 ? '5' : '4';
    if (r === 0) return '0';
    if (Number.isNaN(r)) return finite(op.norm_rel) && (op.baseline_norm_rel === 0 || op.norm_rel === 0) ? '1' : 'x';
    return r <= 0.5 ? '1' : r <= 1 ? '2' : '3';
  };
  const error_of = (op) => (not_finite(op) ? 'not finite' : number(op.norm_rel));
  const ratio_text = (op) => {
    if (not_finite(op)) return 'not finite';
    const r = ratio_of(op);
    return r === 0 ? 'exact' : Number.isNaN(r) ? '–' : times(r);
  };
  /* Nothing takes no time: without samples all three are 0. */
  const timed = (t) => (object(t).median > 0 ? object(t) : {});
  const interval = (t) => {
    t = timed(t);
    return us(t.median) + (finite(t.lo) && finite(t.hi) ? ' (' + us(t.lo) + ' to ' + us(t.hi) + ')' : '');
  };
  const is_first = (op) => first !== null && first.slot === op.slot && first.op === op.op && first.layer === op.layer &&
    (!text(first.tap) || !text(op.tap) || first.tap === op.tap);

  /* ---- where ---- */

  const marks = {
    fail: (x, y, r) => svg('path', {class: 'mk', d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`}),
    flip: (x, y, r) => svg('circle', {class: 'dot', cx: x, cy: y, r: r * 0.8}),
  };
  const mark_of = (op) => (['fail', 'flip'].includes(status_of(op)) ? status_of(op) : null);

  const swatch = (shade, mark) => {
    const node = svg('svg', {width: 16, height: 16, 'aria-hidden': 'true'}, svg('rect', {class: 'c' + shade, width: 16, height: 16, rx: 2}));
    if (mark) node.append(marks[mark](8, 8, 3));
    return node;
  };
  const heat_legend = () => {
    const seen = new Set(ops.map(shade_of));
    const entries = [['0', 'exact'], ['1', 'up to ½, or one ulp'], ['2', 'up to 1'], ['3', 'within the bound'], ['4', 'beyond the bound'],
      ['5', 'over 10'], ['6', 'over 100'], ['7', 'NaN or infinite'], ['x', 'no number']];
    $('heat-legend').append(html('li', {}, 'Times the baseline:'));
    for (const [shade, label] of entries)
      if (seen.has(shade) || '0123456'.includes(shade)) $('heat-legend').append(html('li', {}, swatch(shade), label));
    if (ops.some((op) => status_of(op) === 'fail')) $('heat-legend').append(html('li', {}, swatch('4', 'fail'), 'made here'));
    if (ops.some((op) => status_of(op) === 'flip')) $('heat-legend').append(html('li', {}, swatch('2', 'flip'), 'flips by rounding'));
  };

  const rank = (op) => 1 + ['flip', 'inherited', 'fail'].indexOf(status_of(op));
  const worse = (p, q) => rank(p) > rank(q) || (rank(p) === rank(q) && (ratio_of(p) || 0) > (ratio_of(q) || 0));

  const heat_rows = () => {
    const rows = new Map(), layers = new Set();
    ops.forEach((op, i) => {
      const column = in_layer(op) ? op.layer : -1, key = name_of(op) + '\n' + short_tap(op);
      if (!rows.has(key)) rows.set(key, {name: name_of(op), tap: short_tap(op), cells: new Map()});
      const cells = rows.get(key).cells, old = cells.get(column);
      if (!old || worse(op, ops[old.i])) cells.set(column, {i, op});
      layers.add(column);
    });
    return {rows: [...rows.values()], columns: [...layers].sort((p, q) => p - q)};
  };

  const show_in_table = (i) => {
    $('ops-find').value = '';
    $('ops-status').value = '';
    filter_ops();
    for (const row of document.querySelectorAll('#ops-table tr.here-row')) row.classList.remove('here-row');
    const row = document.querySelector(`#ops-table tr[data-i="${i}"]`);
    row.classList.add('here-row');
    row.scrollIntoView({block: 'center'});
  };

  const show_detail = (i) => {
    const op = ops[i], a = object(op.time_a_us), b = object(op.time_b_us);
    const facts = [['Status', status_of(op) || '–'], ['Error', error_of(op)], ['Baseline', number(op.baseline_norm_rel)],
      ['Ratio', ratio_text(op)], ['Largest difference', number(op.max_abs)], ['Worst row', number(worst_of(op))],
      ['Flips', String(n_flips(op))], ['Calls', number(op.calls)], ['Time of A', interval(a)], ['Time of B', interval(b)]];
    if (text(op.provider_a)) facts.push(['A is', text(op.provider_a)]);
    if (text(op.provider_b)) facts.push(['B is', text(op.provider_b)]);
    if (finite(op.bytes) && op.bytes > 0 && b.median > 0) facts.push(['B moves', rate(op.bytes / b.median * 1e6, 'B/s')]);
    if (finite(op.flops) && op.flops > 0 && b.median > 0) facts.push(['B computes', rate(op.flops / b.median * 1e6, 'FLOP/s')]);
    const button = html('button', {type: 'button'}, 'Show in the table');
    button.addEventListener('click', () => show_in_table(i));
    $('heat-detail').replaceChildren(
      html('h3', {}, html('bdi', {}, place_of(op)), short_tap(op) ? html('code', {}, '  ' + text(op.tap)) : ''),
      text(op.text) ? html('p', {class: 'note'}, html('bdi', {}, text(op.text))) : '',
      html('dl', {}, ...facts.map(([key, value]) => html('div', {}, html('dt', {}, key), html('dd', {}, value)))), button);
  };

  const heat = () => {
    const {rows, columns} = heat_rows();
    if (rows.length === 0) {
      $('where').hidden = true;
      return;
    }
    heat_legend();
    const names = new Map();
    for (const row of rows) names.set(row.name, (names.get(row.name) || 0) + 1);
    $('heat-labels').append(html('div', {}, 'layer'));
    for (const row of rows) {
      const label = html('div', {title: row.name + (row.tap ? ' ' + row.tap : '')}, row.name);
      if (names.get(row.name) > 1 && row.tap) label.append(html('span', {}, ' ' + row.tap));
      $('heat-labels').append(label);
    }
    let pinned = ops.findIndex(is_first);
    if (pinned < 0) pinned = ops.reduce((best, op, i) => (worse(op, ops[best]) ? i : best), 0);
    const H = 22;
    on_width($('heat-scroll'), (width) => {
      const step = Math.max(12, Math.min(44, Math.floor((width - 4) / columns.length))), every = Math.ceil(24 / step);
      const root = svg('svg', {width: step * columns.length + 4, height: H * (rows.length + 1) + 4, role: 'group',
        'aria-label': 'Error by layer and op: arrow keys move, Enter pins'});
      const grid = rows.map(() => []);
      columns.forEach((column, x) => {
        if (column < 0 || x % every === 0)
          root.append(svg('text', {x: x * step + step / 2, y: 15, 'text-anchor': 'middle'}, column < 0 ? '–' : String(column)));
      });
      rows.forEach((row, y) => columns.forEach((column, x) => {
        const found = row.cells.get(column);
        if (!found) return;
        const {i, op} = found, left = x * step + 1, top = (y + 1) * H + 1, w = step - 2, h = H - 2;
        const cell = svg('g', {class: 'cell', tabindex: -1, role: 'img', 'data-i': i,
          'aria-label': `${place_of(op)} ${short_tap(op)}: ${status_of(op)}, error ${error_of(op)}, ratio ${ratio_text(op)}`},
        svg('rect', {class: 'c' + shade_of(op), x: left, y: top, width: w, height: h, rx: 2}));
        const kind = mark_of(op);
        if (kind) cell.append(marks[kind](left + w / 2, top + h / 2, Math.min(4, w / 3)));
        if (is_first(op)) cell.append(svg('rect', {class: 'first', x: left, y: top, width: w, height: h, rx: 2}));
        grid[y][x] = cell;
        root.append(cell);
        const lines = [place_of(op), ...(short_tap(op) ? [short_tap(op)] : []), `${status_of(op)}, error ${error_of(op)}`,
          `baseline ${number(op.baseline_norm_rel)}, ratio ${ratio_text(op)}`];
        if (is_first(op)) lines.push('the first difference');
        cell.addEventListener('pointermove', (event) => show_tip(lines, event.clientX, event.clientY));
        cell.addEventListener('pointerleave', hide_tip);
        cell.addEventListener('focus', () => {
          const box = cell.getBoundingClientRect();
          show_tip(lines, box.right, box.bottom - 14);
        });
        cell.addEventListener('blur', hide_tip);
        cell.addEventListener('click', () => pin(i));
        cell.addEventListener('keydown', (event) => {
          const step_of = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
          if (event.key === 'Enter' || event.key === ' ') pin(i);
          else if (!step_of) return;
          else move(y, x, step_of);
          event.preventDefault();
        });
      }));
      const pin = (i) => {
        pinned = i;
        for (const cell of root.querySelectorAll('.cell')) {
          const here = Number(cell.getAttribute('data-i')) === i;
          cell.classList.toggle('pinned', here);
          cell.setAttribute('tabindex', here ? 0 : -1);
        }
        show_detail(i);
      };
      const move = (y, x, [dy, dx]) => {
        for (y += dy, x += dx; grid[y] && x >= 0 && x < columns.length; y += dy, x += dx)
          if (grid[y][x]) {
            grid[y][x].focus();
            return;
          }
      };
      $('heat-scroll').replaceChildren(root);
      pin(pinned);
    });
  };

  /* ---- axes ---- */

  /* About n round numbers between 0 and max. */
  const ticks = (max, n) => {
    if (!(max > 0)) return [0];
    const raw = max / n, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw * 0.999);
    const out = [];
    for (let i = 0; i * step <= max * 1.0001; ++i) out.push(Number((i * step).toPrecision(12)));
    return out;
  };

  /* A scale from 0 to the largest value; over several powers of ten a logarithmic one whose lowest line is zero. */
  const scale_of = (values, low, high) => {
    const positive = values.filter((v) => v > 0), max = Math.max(...positive, 0), min = Math.min(...positive);
    if (positive.length > 0 && max / min > 50) {
      const top = Math.ceil(Math.log10(max) - 1e-9), bottom = Math.max(Math.floor(Math.log10(min) + 1e-9), top - 12);
      const at = (v) => (v > 0 ? low + (high - low) * Math.max(0.02, (Math.log10(v) - bottom + 1) / (top - bottom + 1)) : low);
      const every = Math.ceil((top - bottom + 1) / 6), lines = [0];
      for (let e = top; e >= bottom; e -= every) lines.push(10 ** e);
      return {at, lines, log: true};
    }
    const lines = ticks(max, 4), top = max > 0 ? max * 1.05 : 1;
    return {at: (v) => low + (high - low) * v / top, lines, log: false};
  };

  /* ---- when ---- */

  /* More positions than pixels: the median of each few pixels, and its range. */
  const binned = (points, px, step) => {
    const bins = new Map();
    for (const q of points) {
      const x = Math.floor(px(q.x) / step) * step + step / 2;
      if (!bins.has(x)) bins.set(x, []);
      if (finite(q.y)) bins.get(x).push(q.y);
    }
    return [...bins].map(([x, ys]) => {
      ys.sort((p, q) => p - q);
      return {x, y: ys.length > 0 ? ys[ys.length >> 1] : NaN, low: ys[0], high: ys[ys.length - 1]};
    });
  };

  const kl = () => {
    const all = list(object(result.logits).by_position).map(object);
    if (all.length === 0) {
      $('kl-plot').closest('.plot').hidden = true;
      return;
    }
    const position = (p, i) => (finite(p.pos) ? p.pos : i);
    const points = all.map((p, i) => ({p, x: position(p, i), y: finite(p.kl) ? Math.max(0, p.kl) : NaN,
      differs: finite(p.a_id) && finite(p.b_id) && p.a_id !== p.b_id}));
    const first_hit = points.findIndex((q) => q.differs), values = points.map((q) => q.y).filter(finite);
    const entry = (node, label) => $('kl-legend').append(html('li', {}, svg('svg', {width: 18, height: 12, 'aria-hidden': 'true'}, node), label));
    entry(svg('line', {class: 'curve', x1: 0, x2: 18, y1: 6, y2: 6}), points.length > 600 ? 'KL of A to B, nats: median and range' : 'KL of A to B, nats');
    if (first_hit >= 0) entry(diamond(9, 6), 'the best token differs');
    if (values.length < points.length) entry(cross(9, 6), 'not finite');
    let at = -1;
    const say = (i) => {
      const {p, x, y, differs} = points[i];
      const lines = ['Position ' + x, 'KL ' + (finite(y) ? number(y) + ' nats' : 'not finite'), 'largest logit difference ' + number(p.max_abs)];
      if (differs) lines.push('best token: A ' + token(p.a_id, text(p.a_text)) + ', B ' + token(p.b_id, text(p.b_text)));
      return lines;
    };
    on_width($('kl-plot'), (width) => {
      const height = width < 500 ? 210 : 250, left = 58, right = width - 14, top = 34, bottom = height - 38;
      const lo = Math.min(...points.map((q) => q.x)), hi = Math.max(...points.map((q) => q.x));
      const px = (x) => (hi > lo ? left + (right - left) * (x - lo) / (hi - lo) : (left + right) / 2);
      const scale = scale_of(values, bottom, top);
      const root = svg('svg', {width, height, tabindex: 0, role: 'img',
        'aria-label': `KL by position, ${points.length} positions; arrow keys move from one to the next`});
      for (const v of scale.lines) {
        root.append(svg('line', {class: v === 0 ? 'axis' : 'grid', x1: left, x2: right, y1: scale.at(v), y2: scale.at(v)}));
        root.append(svg('text', {x: left - 8, y: scale.at(v) + 4, 'text-anchor': 'end'}, scale.log && v > 0 ? power_of_ten(v) : number(v)));
      }
      root.append(svg('text', {x: 2, y: 12}, 'KL, nats' + (scale.log ? ' (logarithmic)' : '')));
      root.append(svg('text', {x: right, y: height - 4, 'text-anchor': 'end'}, 'position in the prompt'));
      const room = Math.max(2, Math.floor((right - left) / 70)), span = ticks(hi - lo, room);
      for (const v of span)
        if (Number.isInteger(v)) root.append(svg('text', {x: px(lo + v), y: bottom + 17, 'text-anchor': 'middle'}, String(lo + v)));
      const dense = points.length > 600;
      const curve = dense ? binned(points, px, 3) : points.map((q) => ({x: px(q.x), y: q.y}));
      let d = '', pen = 'M';
      for (const q of curve) {
        if (finite(q.y)) { d += `${pen}${q.x.toFixed(1)} ${scale.at(q.y).toFixed(1)}`; pen = 'L'; } else pen = 'M';
      }
      if (dense) {
        const known = curve.filter((q) => finite(q.y)), edge = (key) => (q) => `${q.x.toFixed(1)} ${scale.at(q[key]).toFixed(1)}`;
        root.append(svg('path', {class: 'range', d: 'M' + [...known.map(edge('high')), ...known.reverse().map(edge('low'))].join('L') + 'Z'}));
      }
      root.append(svg('path', {class: 'curve', d}));
      const alone = (i) => !finite((points[i - 1] || {}).y) && !finite((points[i + 1] || {}).y);
      points.forEach((q, i) => {
        if (finite(q.y) && !q.differs && (points.length <= 48 || alone(i))) root.append(svg('circle', {class: 'point', cx: px(q.x), cy: scale.at(q.y), r: 3.5}));
        if (!finite(q.y)) root.append(cross(px(q.x), top));
      });
      if (first_hit >= 0) {
        const q = points[first_hit], x = px(q.x), end = x > (left + right) / 2;
        root.append(svg('line', {class: 'here', x1: x, x2: x, y1: top - 14, y2: bottom}));
        root.append(svg('text', {class: 'strong', id: 'kl-first', x: end ? x - 6 : x + 6, y: top - 9, 'text-anchor': end ? 'end' : 'start'},
          'first other token: ' + q.x));
      }
      points.forEach((q) => { if (q.differs && finite(q.y)) root.append(diamond(px(q.x), scale.at(q.y))); });
      if (values.length > 0 && Math.max(...values) === 0)
        root.append(svg('text', {x: (left + right) / 2, y: (top + bottom) / 2, 'text-anchor': 'middle'}, 'zero at every position'));
      const line = svg('line', {class: 'cross', y1: top, y2: bottom, visibility: 'hidden'});
      root.append(line);
      const go = (i, from_key) => {
        at = Math.max(0, Math.min(points.length - 1, i));
        const x = px(points[at].x), box = root.getBoundingClientRect();
        fill(line, {x1: x, x2: x, visibility: 'visible'}, []);
        show_tip(say(at), box.left + x, box.top + (finite(points[at].y) ? scale.at(points[at].y) : top));
        if (from_key) $('kl-detail').textContent = say(at).join(', ');
      };
      const leave = () => { line.setAttribute('visibility', 'hidden'); hide_tip(); };
      root.addEventListener('pointermove', (event) => {
        const x = event.clientX - root.getBoundingClientRect().left;
        let best = 0;
        points.forEach((q, i) => { if (Math.abs(px(q.x) - x) < Math.abs(px(points[best].x) - x)) best = i; });
        go(best, false);
      });
      root.addEventListener('click', () => { if (at >= 0) go(at, true); });
      root.addEventListener('pointerleave', leave);
      root.addEventListener('blur', leave);
      root.addEventListener('keydown', (event) => {
        const target = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: points.length - 1}[event.key];
        if (target === undefined) return;
        go(target, true);
        event.preventDefault();
      });
      $('kl-plot').replaceChildren(root);
    });
  };
  const diamond = (x, y) => svg('path', {class: 'hit', d: `M${x} ${y - 5.5}L${x + 5.5} ${y}L${x} ${y + 5.5}L${x - 5.5} ${y}Z`});
  const cross = (x, y) => svg('path', {class: 'nan', d: `M${x - 4} ${y - 4}L${x + 4} ${y + 4}M${x - 4} ${y + 4}L${x + 4} ${y - 4}`});

  /* ---- is it faster ---- */

  const time_rows = () => {
    const rows = new Map();
    for (const op of ops) {
      const a = timed(op.time_a_us), b = timed(op.time_b_us), calls = finite(op.calls) ? op.calls : 1;
      if (!finite(a.median) && !finite(b.median)) continue;
      const name = name_of(op);
      if (!rows.has(name)) rows.set(name, {name, a: {v: 0, lo: 0, hi: 0}, b: {v: 0, lo: 0, hi: 0}});
      for (const [sum, t] of [[rows.get(name).a, a], [rows.get(name).b, b]]) {
        if (!finite(t.median)) { sum.v = NaN; continue; }
        sum.v += t.median * calls;
        sum.lo += (finite(t.lo) ? t.lo : t.median) * calls;
        sum.hi += (finite(t.hi) ? t.hi : t.median) * calls;
      }
    }
    const size = (row) => Math.max(finite(row.a.v) ? row.a.v : 0, finite(row.b.v) ? row.b.v : 0);
    return [...rows.values()].sort((p, q) => size(q) - size(p));
  };
  const judge = ({a, b}) => {
    if (!finite(a.v) || !finite(b.v) || a.v <= 0 || b.v <= 0) return 'only one side was timed';
    /* A median of one call has an interval without width, which tells nothing. */
    if (a.hi <= a.lo || b.hi <= b.lo) return 'too few calls to tell';
    if (a.lo <= b.hi && b.lo <= a.hi || Math.abs(a.v / b.v - 1) < 0.005) return 'no clear difference';
    return a.v > b.v ? `B is ${number(a.v / b.v)} × faster` : `B is ${number(b.v / a.v)} × slower`;
  };

  const time = () => {
    let rows = time_rows();
    if (rows.length === 0) {
      $('time').hidden = true;
      return;
    }
    for (const side of ['a', 'b'])
      $('time-legend').append(html('li', {}, svg('svg', {width: 14, height: 14, 'aria-hidden': 'true'},
        svg('rect', {class: 'bar-' + side, width: 14, height: 14, rx: 2})), side.toUpperCase()));
    const most = Math.max(...rows.flatMap((row) => [row.a.hi, row.b.hi]).filter(finite));
    on_width($('time-plot'), (width) => {
      const R = 52, left = 16, room = Math.max(60, width - left - 92), height = rows.length * R + 2;
      const root = svg('svg', {width, height, role: 'img', 'aria-label': 'Time by op: ' + rows.slice(0, 12).map((row) => `${row.name}: A ${us(row.a.v)}, B ${us(row.b.v)}`).join('; ')});
      rows.forEach((row, i) => {
        const y = i * R, group = svg('g', {class: 'pair-of-bars'});
        const limit = Math.max(10, Math.floor((width - 150) / 7));
        const name = row.name.length > limit ? row.name.slice(0, limit - 1) + '…' : row.name;
        group.append(svg('text', {class: 'strong', x: 0, y: y + 13}, name));
        group.append(svg('text', {x: width - 2, y: y + 13, 'text-anchor': 'end'}, judge(row)));
        ['a', 'b'].forEach((side, k) => {
          const t = row[side], top = y + 19 + k * 13, px = (v) => left + room * v / most;
          group.append(svg('text', {x: 0, y: top + 9.5}, side.toUpperCase()));
          if (!finite(t.v)) return;
          group.append(svg('rect', {class: 'bar-' + side, x: left, y: top, width: Math.max(1, px(t.v) - left), height: 11, rx: 2}));
          if (t.hi > t.lo) {
            const [x1, x2, m] = [px(t.lo), px(t.hi), top + 5.5];
            const d = `M${x1} ${m}L${x2} ${m}M${x1} ${m - 3}L${x1} ${m + 3}M${x2} ${m - 3}L${x2} ${m + 3}`;
            group.append(svg('path', {class: 'halo', d}), svg('path', {class: 'whisker', d}));
          }
          group.append(svg('text', {x: px(Math.max(t.v, t.hi)) + 6, y: top + 9.5}, us(t.v)));
        });
        root.append(group);
      });
      $('time-plot').replaceChildren(root);
    });
  };

  /* ---- the table ---- */

  const median = (key) => (op) => timed(op[key]).median;
  const slower = (op) => timed(op.time_b_us).median / timed(op.time_a_us).median;
  const by_column = [(op) => rank(op), (op) => op.layer, (op) => text(op.slot), (op) => text(op.op), (op) => text(op.tap),
    (op) => (not_finite(op) ? Infinity : op.norm_rel), (op) => op.baseline_norm_rel, ratio_of, (op) => (not_finite(op) ? Infinity : op.max_abs),
    (op) => (not_finite(op) ? Infinity : op.max_rel), worst_of, n_flips, (op) => op.calls,
    median('time_a_us'), median('time_b_us'), slower, (op) => op.bytes, (op) => op.flops];

  const rows_of_table = () => [...document.querySelectorAll('#ops-table tbody tr')];
  const filter_ops = () => {
    const words = $('ops-find').value.toLowerCase().split(/\s+/).filter(Boolean), status = $('ops-status').value;
    let n = 0;
    for (const row of rows_of_table()) {
      const op = ops[row.dataset.i];
      const hay = [text(op.slot), text(op.op), name_of(op), text(op.tap), in_layer(op) ? 'layer' + op.layer : '', status_of(op)].join(' ').toLowerCase();
      row.hidden = !(words.every((word) => hay.includes(word) || word === String(op.layer)) && (status === '' || status_of(op) === status));
      n += row.hidden ? 0 : 1;
    }
    $('ops-count').textContent = `${n} of ${ops.length} shown`;
  };

  const sort_ops = (column, down) => {
    const value = by_column[column], missing = (v) => v === undefined || v === null || v === '' || Number.isNaN(v);
    const rows = rows_of_table().map((row) => ({row, i: Number(row.dataset.i), v: value(ops[row.dataset.i])}));
    rows.sort((p, q) => {
      if (missing(p.v) || missing(q.v)) return missing(p.v) - missing(q.v) || p.i - q.i;
      const order = p.v < q.v ? -1 : p.v > q.v ? 1 : 0;
      return (down ? -order : order) || p.i - q.i;
    });
    document.querySelector('#ops-table tbody').append(...rows.map((r) => r.row));
  };

  const table = () => {
    const heads = [...document.querySelectorAll('#ops-table thead th')];
    if (heads.length === 0) return;
    heads.forEach((head, column) => {
      const button = html('button', {type: 'button'}, head.textContent);
      head.replaceChildren(button);
      button.addEventListener('click', () => {
        const down = head.getAttribute('aria-sort') ? head.getAttribute('aria-sort') === 'ascending' : head.classList.contains('n') && column !== 1 || column === 0;
        for (const other of heads) other.removeAttribute('aria-sort');
        head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
        sort_ops(column, down);
      });
    });
    for (const status of new Set(ops.map(status_of).filter(Boolean))) $('ops-status').append(html('option', {value: status}, status));
    $('ops-find').addEventListener('input', filter_ops);
    $('ops-status').addEventListener('change', filter_ops);
    $('ops-controls').hidden = false;
    filter_ops();
  };

  const draw = [heat, kl, time, table];
  const troubles = [];
  for (const part of draw) {
    try {
      part();
    } catch (error) {
      troubles.push(part.name + ': ' + error.message);
    }
  }
  if (troubles.length > 0) {
    $('trouble').textContent = 'A part of this page could not be drawn, the tables hold the numbers: ' + troubles.join('; ');
    $('trouble').hidden = false;
  }
  document.documentElement.dataset.state = troubles.length > 0 ? 'trouble' : 'drawn';
})();
