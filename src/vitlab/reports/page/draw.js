// Elements, colours, maps on canvases, charts as SVG. Text is set as text, never as markup.

// From dark blue over grey to yellow, lightness rising evenly: vitlab.interpretation.paint has the same.
const RAMP = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [253, 231, 55]];
const AGAINST = [0, 114, 178], FOR = [213, 94, 0];

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function ramp(share) {
  const place = Math.min(1, Math.max(0, share)) * (RAMP.length - 1), at = Math.min(RAMP.length - 2, Math.floor(place));
  return RAMP[at].map((level, c) => level + (RAMP[at + 1][c] - level) * (place - at));
}

export function diverging(share, zero = 245) {
  const tint = share < 0 ? AGAINST : FOR, strength = Math.min(1, Math.abs(share)) ** 0.8;
  return tint.map(level => zero + (level - zero) * strength);
}

export function percent(value, digits) {
  const shown = digits ?? (value >= 0.0995 ? 0 : value >= 0.00995 ? 1 : 2);
  return `${(100 * value).toFixed(shown)} %`;
}

// Colours follow the square root of a share, so that what is small beside one strong patch is still seen.
export function lifted(share) {
  return Math.sqrt(Math.max(0, share));
}

// A small canvas with one pixel a patch.
export function pixelCanvas(rows, columns, colour) {
  const canvas = new OffscreenCanvas(columns, rows), context = canvas.getContext("2d"), pixels = context.createImageData(columns, rows);
  for (let place = 0; place < rows * columns; place++) {
    const [r, g, b, a = 255] = colour(place);
    pixels.data.set([r, g, b, a], 4 * place);
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

export function largestOf(values) {
  let largest = 0;
  for (const value of values) if (value > largest) largest = value;
  return largest;
}

// What the ends of the colours stand for: the map's own range, and as far to both sides of zero where it has signs.
export function rangeOf(values, kind) {
  if (kind === "similarity") return [-1, 1];
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return kind === "signed" ? [-Math.max(high, -low), Math.max(high, -low)] : [low, high];
}

// The pixels of a canvas that shows an image as large as the page needs it.
export function fitCanvas(canvas, [height, width], least = 720) {
  const scale = Math.max(1, Math.ceil(least / Math.max(height, width)));
  if (canvas.width !== width * scale || canvas.height !== height * scale) [canvas.width, canvas.height] = [width * scale, height * scale];
  return scale;
}

export function drawImage(context, bitmap, scale, order = null, grid = null, step = null) {
  const {width, height} = context.canvas;
  context.imageSmoothingEnabled = bitmap.width >= 96;
  context.imageSmoothingQuality = "high";
  if (!order) {
    context.drawImage(bitmap, 0, 0, width, height);
    return;
  }
  const [high, wide] = step;
  order.forEach((from, place) => {
    const [row, column] = [Math.floor(place / grid[1]), place % grid[1]], [top, left] = [Math.floor(from / grid[1]) * high, (from % grid[1]) * wide];
    context.drawImage(bitmap, left, top, wide, high, column * wide * scale, row * high * scale, wide * scale, high * scale);
  });
}

// A map over the image that is on the canvas already; `shown` is what `heatOf` gives.
export function drawHeat(context, shown, scale, opacity, overlay) {
  const {values, rows, columns, kind, step} = shown;
  const [low, high] = rangeOf(values, kind), spread = high - low;
  const share = place => (spread > 0 ? (values[place] - low) / spread : 0);
  const colour = {
    heat: place => [...ramp(lifted(share(place))), 255 * (0.5 + 0.5 * lifted(share(place)))],
    shade: place => [0, 0, 0, 240 * (1 - lifted(share(place)))],
    signed: place => [...diverging(2 * share(place) - 1), 255],
    similarity: place => [...ramp((values[place] + 1) / 2), 255],
    colours: place => [values[3 * place], values[3 * place + 1], values[3 * place + 2], 255],
  };
  const how = kind === "heat" ? overlay : kind;
  const map = pixelCanvas(rows, columns, colour[how]);
  context.save();
  context.globalAlpha = opacity;
  context.imageSmoothingEnabled = false;
  const size = step ? [columns * step[1] * scale, rows * step[0] * scale] : [context.canvas.width, context.canvas.height];
  context.drawImage(map, 0, 0, ...size);
  context.restore();
}

export function drawGrid(context, grid, step, scale) {
  context.save();
  context.strokeStyle = "rgba(255,255,255,.75)";
  context.lineWidth = Math.min(2, Math.max(1, scale / 2));
  context.beginPath();
  for (let row = 1; row < grid[0]; row++) { context.moveTo(0, row * step[0] * scale); context.lineTo(context.canvas.width, row * step[0] * scale); }
  for (let column = 1; column < grid[1]; column++) { context.moveTo(column * step[1] * scale, 0); context.lineTo(column * step[1] * scale, context.canvas.height); }
  context.stroke();
  context.restore();
}

export function frame(context, place, grid, step, scale, colour, thick) {
  const [top, left] = [Math.floor(place / grid[1]) * step[0] * scale, (place % grid[1]) * step[1] * scale];
  context.save();
  context.lineWidth = thick + 2;
  context.strokeStyle = "#fff";
  context.strokeRect(left, top, step[1] * scale, step[0] * scale);
  context.lineWidth = thick;
  context.strokeStyle = colour;
  context.strokeRect(left, top, step[1] * scale, step[0] * scale);
  context.restore();
}

// Curves over layers: [{name, values, strong}], values from 0 to 1; `at` is marked.
export function curveChart({curves, at, title, pick}) {
  const narrow = innerWidth < 600, [width, height, left, right, top, bottom] = narrow ? [380, 244, 46, 112, 14, 40] : [600, 256, 52, 158, 14, 40], count = curves[0].values.length;
  const x = place => left + (count > 1 ? place / (count - 1) : 0.5) * (width - left - right), y = value => top + (1 - value) * (height - top - bottom);
  const chart = svg("svg", {viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": title});
  for (const level of [0, 0.25, 0.5, 0.75, 1]) {
    chart.append(svg("line", {x1: left, x2: width - right, y1: y(level), y2: y(level), class: "rule"}), text(left - 8, y(level) + 4, `${100 * level} %`, "end"));
  }
  const every = Math.ceil(count / (narrow ? 6 : 12));
  for (let place = 0; place < count; place++) if (place % every === 0) chart.append(text(x(place), height - 20, place, "middle"));
  chart.append(text((left + width - right) / 2, height - 4, "layer", "middle"));
  if (at >= 0) chart.append(svg("line", {x1: x(at), x2: x(at), y1: top, y2: height - bottom, class: "now"}));
  const ends = spread(curves.map(curve => y(curve.values[count - 1])), 15, top + 4, height - bottom);
  curves.forEach((curve, number) => {
    const points = Array.from(curve.values, (value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    chart.append(svg("polyline", {points, class: `line c${number % 6}`}), svg("circle", {cx: x(count - 1), cy: y(curve.values[count - 1]), r: 3, class: `dot c${number % 6}`}));
    const label = text(width - right + 10, ends[number] + 4, short(curve.name, narrow ? 14 : 21), "start");
    label.classList.add(`ink${number % 6}`);
    label.append(svg("title", {}, curve.name));
    chart.append(label);
  });
  if (pick) {
    const hit = svg("rect", {x: left, y: top, width: width - right - left, height: height - bottom - top, class: "hit"});
    hit.addEventListener("click", event => {
      const box = hit.getBoundingClientRect();
      pick(Math.round((event.clientX - box.left) / box.width * (count - 1)));
    });
    chart.append(hit);
  }
  return chart;
}

// Places apart from each other by at least `gap`, as near to the wanted ones as the order allows.
function spread(wanted, gap, low, high) {
  const order = wanted.map((place, number) => [place, number]).sort((a, b) => a[0] - b[0]);
  const out = [];
  let last = low - gap;
  for (const [place, number] of order) out[number] = last = Math.max(place, last + gap);
  let over = last - high;
  for (const [, number] of order.reverse()) if (over > 0) { out[number] = Math.min(out[number], high); high = out[number] - gap; over = 1; }
  return out;
}

export function distanceChart({values, layers, heads, at, title, unit, most, pick}) {
  const narrow = innerWidth < 600, [width, height, left, right, top, bottom] = narrow ? [380, 234, 40, 10, 12, 40] : [600, 246, 44, 14, 12, 40];
  const x = layer => left + (layer + 0.5) / layers * (width - left - right), y = value => top + (1 - value / most) * (height - top - bottom);
  const chart = svg("svg", {viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": title});
  const tick = [10, 20, 25, 50, 100, 200, 500].find(size => most / size <= 5) ?? most / 4;
  for (let value = 0; value <= most; value += tick) {
    chart.append(svg("line", {x1: left, x2: width - right, y1: y(value), y2: y(value), class: "rule"}), text(left - 8, y(value) + 4, Math.round(value), "end"));
  }
  const every = Math.ceil(layers / (narrow ? 8 : 16));
  for (let layer = 0; layer < layers; layer++) if (layer % every === 0) chart.append(text(x(layer), height - 20, layer, "middle"));
  chart.append(text((left + width - right) / 2, height - 4, `layer (distance in ${unit})`, "middle"));
  for (let layer = 0; layer < layers; layer++) for (let head = 0; head < heads; head++) {
    const chosen = layer === at[0] && (at[1] < 0 || head === at[1]);
    const value = values[layer * heads + head];
    const dot = svg("circle", {cx: x(layer), cy: y(value), r: chosen ? 7 : 5, class: chosen ? "dot chosen" : "dot c0 faint"});
    dot.append(svg("title", {}, `layer ${layer}, head ${head}: ${value.toFixed(1)} ${unit}`));
    dot.addEventListener("click", () => pick(layer, head));
    chart.append(dot);
  }
  return chart;
}

function text(x, y, words, anchor) {
  return svg("text", {x, y, "text-anchor": anchor}, String(words));
}

export function short(words, most) {
  return words.length > most ? `${words.slice(0, most - 1)}…` : words;
}

// Probabilities as bars; `before` gives the change since.
export function bars(answer, {before = null, count = 5} = {}) {
  return h("ol", {className: "bars"}, ...answer.slice(0, count).map(({label, probability, class: number}) => {
    const was = before?.get(number);
    const change = was === undefined ? null : probability - was;
    const row = h("li", {}, h("span", {className: "label"}, label), h("span", {className: "value"}, percent(probability)));
    row.dataset.value = probability;
    row.dataset.class = number;
    const track = h("span", {className: "track", ariaHidden: "true"}, h("i"));
    track.firstChild.style.width = `${100 * probability}%`;
    if (was !== undefined) {
      const mark = h("b");
      mark.style.left = `${100 * was}%`;
      track.append(mark);
    }
    row.append(track);
    if (change !== null && Math.abs(change) >= 0.0005) {
      row.children[1].append(h("small", {className: change > 0 ? "up" : "down"}, ` ${change > 0 ? "+" : "−"}${(100 * Math.abs(change)).toFixed(1)}`));
    }
    return row;
  }));
}
