// The stage (the image and what lies over it) and the cards beside it. Each panel makes its elements once and updates them.

import {bars, curveChart, diverging, distanceChart, drawGrid, drawHeat, drawImage, fitCanvas, frame, h, largestOf, lifted, percent, pixelCanvas, ramp, rangeOf} from "./draw.js";
import {views} from "./state.js";

const MARK = "#d55e00";

export function tokenName(model, token) {
  const {tokens, grid} = model.facts, place = token - tokens.length;
  return place < 0 ? tokens[token] : `patch (${Math.floor(place / grid[1])}, ${place % grid[1]})`;
}

// What the chosen token attends to in a layer and head, N values; head -1 is the mean of the heads.
export function attentionRow({model, image, rows}, layer, head, filtered = false) {
  const {heads} = model.facts, tokens = rows.length / (model.facts.layers * heads), out = new Float32Array(tokens);
  const chosen = head < 0 ? Array.from({length: heads}, (_, number) => number) : [head];
  for (const number of chosen) {
    const from = (layer * heads + number) * tokens, norms = image.arrays.norms;
    let total = 1;
    if (filtered) {
      total = 0;
      for (let n = 0; n < tokens; n++) total += rows[from + n] * norms[from + n];
    }
    for (let n = 0; n < tokens; n++) out[n] += rows[from + n] * (filtered ? norms[from + n] / (total || 1) : 1) / chosen.length;
  }
  return out;
}

// What lies over the image in the chosen view: values for patches, how they are drawn, and what they mean.
export function heatOf(context) {
  const {state, model, image, rows} = context, {grid, step, tokens} = model.facts;
  const onGrid = {rows: grid[0], columns: grid[1], step};
  const where = `layer ${state.layer}, ${state.head < 0 ? "mean of all heads" : `head ${state.head}`}`;
  switch (state.view) {
    case "attention":
    case "filtered": {
      if (!rows) return null;
      const all = attentionRow(context, state.layer, state.head, state.view === "filtered");
      const words = state.view === "attention" ? "attends to" : "takes from";
      return {...onGrid, kind: "heat", overlay: state.view === "filtered" ? "shade" : null, values: all.subarray(tokens.length), all, title: `What the ${tokenName(model, context.token)} ${words}: ${where}`, unit: roughly(image, context.token) ? "about" : "share"};
    }
    case "positions": {
      const place = state.token - tokens.length, count = grid[0] * grid[1];
      if (place < 0) return null;
      const values = Float32Array.from(model.arrays.similarity.subarray(place * count, (place + 1) * count), code => code / 127.5 - 1);
      return {...onGrid, kind: "similarity", values, title: `How similar other positions are to that of ${tokenName(model, state.token)}`, unit: "cosine"};
    }
    case "features": {
      const number = featureNumber(context), [down, across] = image.facts.features[number];
      return {rows: down, columns: across, step: down === grid[0] && across === grid[1] ? step : null, kind: "colours", values: image.arrays[`features.${number}`], title: `Patches with similar features get similar colours: ${featureName(model, number)}`, unit: null};
    }
    case "rollout": return {...onGrid, kind: "heat", values: image.maps.get("rollout"), title: `Attention rollout: the patches that reach ${model.facts.reads}`, unit: "share"};
    case "pool": return {...onGrid, kind: "heat", values: image.maps.get("pool"), title: "What the query of the attention pool attends to", unit: "share"};
    case "relevance": return {...onGrid, kind: "heat", values: image.maps.get("relevance"), title: `Evidence for “${image.facts.target_label}”: gradient-weighted attention`, unit: "value"};
    case "activation": return evidenceOf(model, image, "activation");
    case "occlusion": return evidenceOf(model, image, "occlusion");
    default: return null;
  }
}

function evidenceOf(model, image, name) {
  const {grid, step} = model.facts;
  if (name === "occlusion") return {rows: grid[0], columns: grid[1], step, kind: "signed", values: image.maps.get(name), title: `What “${image.facts.target_label}” loses when a patch is covered (orange), or gains (blue)`, unit: "nats"};
  const [down, across] = image.shapes[`map.${name}`];
  const titles = {activation: "Grad-CAM", relevance: "gradient-weighted attention"};
  return {rows: down, columns: across, step: name === "relevance" ? step : null, kind: "heat", values: image.maps.get(name), title: `Evidence for “${image.facts.target_label}”: ${titles[name]}`, unit: "value"};
}

// Which of the stored features: of a ViT the embedding comes first, then each layer; of others the stages.
function featureNumber({state, model, image}) {
  const count = image.facts.features.length;
  return model.facts.layers ? Math.min(count - 1, state.layer + 1) : Math.min(count - 1, Math.max(0, state.layer));
}

function featureName(model, number) {
  if (!model.facts.layers) return `stage ${number}`;
  return number === 0 ? "embedded patches" : `after layer ${number - 1}`;
}

// Whether a file stores this token's attention in few steps.
function roughly(image, token) {
  return image.facts.attention.some(({queries, levels}) => levels > 0 && levels < 100 && queries.includes(token));
}

function showValue(value, unit) {
  if (unit === "about") return `≈ ${percent(value, 1)}`;
  if (unit === "share") return percent(value, 2);
  if (unit === "cosine") return value.toFixed(3);
  if (unit === "nats") return `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(3)} nats`;
  return value.toPrecision(2);
}

function card(id, title, ...children) {
  return h("section", {className: "card", id: `card-${id}`, ariaLabel: title}, h("h2", {}, title), ...children);
}

export function stagePanel(root, act) {
  const canvas = h("canvas", {id: "canvas", tabIndex: 0, role: "application", ariaLabel: "Image with its patches. Arrow keys choose a patch."});
  canvas.setAttribute("aria-describedby", "readout");
  const caption = h("p", {className: "caption", id: "caption"});
  const legend = h("div", {className: "legend", ariaHidden: "true"});
  const readout = h("p", {className: "readout", id: "readout"});
  const viewBar = h("div", {className: "chips views", role: "group", ariaLabel: "View"});
  const tokenBar = h("div", {className: "chips tokens", role: "group", ariaLabel: "Query token"});
  const layer = h("input", {type: "range", id: "layer", min: 0, step: 1, oninput: () => act.set({layer: Number(layer.value)})});
  const layerOut = h("output", {htmlFor: "layer"});
  const layerLabel = h("label", {htmlFor: "layer"}, "layer");
  const head = h("select", {id: "head", onchange: () => act.set({head: Number(head.value)})});
  const opacity = h("input", {type: "range", id: "opacity", min: 0, max: 100, step: 5, oninput: () => act.set({opacity: Number(opacity.value)})});
  const overlay = h("select", {id: "overlay", onchange: () => act.set({overlay: overlay.value})}, h("option", {value: "heat"}, "colours"), h("option", {value: "shade"}, "shade"));
  const layerField = h("div", {className: "field"}, layerLabel, layer, layerOut), headField = h("div", {className: "field"}, h("label", {htmlFor: "head"}, "head"), head);
  const opacityField = h("div", {className: "field"}, h("label", {htmlFor: "opacity"}, "opacity"), opacity), overlayField = h("div", {className: "field"}, h("label", {htmlFor: "overlay"}, "overlay"), overlay);
  const controls = h("div", {className: "controls"}, layerField, headField, opacityField, overlayField);
  const look = h("button", {type: "button", onclick: () => act.set({tool: "look"})}, "Look"), coverButton = h("button", {type: "button", id: "tool-cover", onclick: () => act.set({tool: "cover"})}, "Cover patches");
  const shuffleBar = h("span", {className: "chips"});
  const reset = h("button", {type: "button", className: "chip", id: "reset", onclick: () => act.set({covered: [], side: 0, tool: "look"})}, "Reset");
  const toolNote = h("p", {className: "quiet small"});
  const tools = h("div", {className: "what-if"}, h("div", {className: "segmented", role: "group", ariaLabel: "Touching a patch"}, look, coverButton), shuffleBar, reset, toolNote);
  const shots = h("div", {className: "shots", role: "group", ariaLabel: "Images"});
  const file = h("input", {type: "file", id: "file", accept: "image/*", className: "hidden", onchange: () => { if (file.files.length) act.add(file.files[0]); file.value = ""; }});
  const choose = h("label", {className: "drop", htmlFor: "file"}, file, h("span", {}, "Drop, paste or choose an image"));
  root.append(h("figure", {}, h("div", {className: "frame"}, canvas), h("figcaption", {}, caption, legend, readout)), viewBar, tokenBar, controls, tools, shots, choose);

  let context = null, hovered = -1, dragging = false, painted = new Set(), erasing = false;

  const patchAt = event => {
    const box = canvas.getBoundingClientRect(), {grid, step} = context.model.facts, [height, width] = context.image.facts.size;
    const row = Math.floor((event.clientY - box.top) / box.height * height / step[0]), column = Math.floor((event.clientX - box.left) / box.width * width / step[1]);
    return Math.min(grid[0] - 1, Math.max(0, row)) * grid[1] + Math.min(grid[1] - 1, Math.max(0, column));
  };
  const cover = (place, toggle) => {
    const now = new Set(context.state.covered);
    if (!context.source.served) { act.set({covered: toggle && now.has(place) ? [] : [place], side: 0}); return; }
    if (erasing) now.delete(place); else now.add(place);
    act.set({covered: [...now].sort((a, b) => a - b)});
  };
  const touch = (place, first) => {
    if (context.state.tool !== "cover") { act.set({token: context.model.facts.tokens.length + place}); return; }
    if (first) { painted = new Set(); erasing = context.state.covered.includes(place); }
    if (painted.has(place)) return;
    painted.add(place);
    cover(place, first);
  };
  canvas.addEventListener("pointerdown", event => { if (event.button === 0 && context) { dragging = true; touch(patchAt(event), true); } });
  canvas.addEventListener("pointermove", event => {
    if (!context) return;
    hovered = patchAt(event);
    if (dragging && event.buttons) touch(hovered, false); else paint();
  });
  for (const over of ["pointerup", "pointercancel", "pointerleave"]) canvas.addEventListener(over, () => { dragging = false; hovered = -1; if (context) paint(); });
  canvas.addEventListener("keydown", event => {
    const moves = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}, {grid, tokens} = context.model.facts;
    const place = Math.max(0, context.state.token - tokens.length), move = moves[event.key];
    if (move) {
      const row = Math.min(grid[0] - 1, Math.max(0, Math.floor(place / grid[1]) + move[0])), column = Math.min(grid[1] - 1, Math.max(0, place % grid[1] + move[1]));
      act.set({token: tokens.length + row * grid[1] + column});
    } else if ((event.key === " " || event.key === "Enter") && context.state.tool === "cover") {
      erasing = context.state.covered.includes(place);
      cover(place, true);
    } else return;
    event.preventDefault();
  });

  function paint() {
    const {state, model, image, changed} = context, {grid, step, tokens} = model.facts, pen = canvas.getContext("2d");
    const scale = fitCanvas(canvas, image.facts.size), shown = heatOf(context);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    drawImage(pen, image.bitmap, scale, changed?.order, grid, step);
    const altered = state.covered.length || state.side;
    if (shown && !altered) drawHeat(pen, shown, scale, state.opacity / 100, shown.overlay ?? state.overlay);
    if (state.view === "patches") drawGrid(pen, grid, step, scale);
    for (const place of state.covered) {
      pen.fillStyle = "#7f7f7f";
      pen.fillRect((place % grid[1]) * step[1] * scale, Math.floor(place / grid[1]) * step[0] * scale, step[1] * scale, step[0] * scale);
    }
    const showsQuery = ["patches", "positions", "attention", "filtered"].includes(state.view) || state.tool === "cover";
    const queried = ["attention", "filtered"].includes(state.view) ? context.token : state.token;
    if (hovered >= 0) frame(pen, hovered, grid, step, scale, "#222", Math.min(3, Math.max(1, scale / 2)));
    if (showsQuery && queried >= tokens.length) frame(pen, queried - tokens.length, grid, step, scale, MARK, Math.min(5, Math.max(2, scale)));
    tell(shown, altered);
  }

  function tell(shown, altered) {
    const {state, model} = context, {tokens} = model.facts;
    const place = hovered >= 0 ? hovered : state.token - tokens.length;
    caption.textContent = altered ? "The image as the model gets it now" : shown?.title ?? `${context.image.facts.name}: the model's input, ${context.image.facts.size.join(" x ")} pixels`;
    legend.hidden = !shown || altered || shown.kind === "colours";
    delete readout.dataset.value;
    if (!shown || altered || shown.kind === "colours" || shown.rows !== model.facts.grid[0]) {
      readout.textContent = place >= 0 ? tokenName(model, tokens.length + place) : tokenName(model, state.token);
    } else {
      const at = place >= 0 ? place : shown.values.indexOf(largestOf(shown.values)), value = shown.values[at];
      readout.textContent = `${place >= 0 ? "" : "strongest: "}${tokenName(model, tokens.length + at)}: ${showValue(value, shown.unit)}`;
      readout.dataset.value = value;
      if (shown.all && tokens.length) readout.textContent += ` · ${tokens.map((name, number) => `${name} ${percent(shown.all[number], 1)}`).join(" · ")}`;
    }
    if (!legend.hidden) {
      const signed = shown.kind === "signed", fixed = shown.kind === "similarity", [low, high] = rangeOf(shown.values, shown.kind);
      const strip = h("canvas", {width: 64, height: 1});
      strip.getContext("2d").drawImage(pixelCanvas(1, 64, n => (signed ? diverging(n / 31.5 - 1) : (shown.overlay ?? state.overlay) === "shade" && !fixed ? Array(3).fill(15 + 240 * n / 63) : ramp(n / 63))), 0, 0);
      const middle = signed || fixed ? 0 : low + (high - low) / 4;
      legend.replaceChildren(h("div", {}, strip, h("div", {className: "ticks"}, ...[low, middle, high].map(value => h("span", {}, showValue(value, shown.unit))))));
    }
  }

  return {
    update(next) {
      context = next;
      const {state, model, image, source} = context, {layers, heads, tokens, shuffles} = model.facts;
      const chip = (name, pressed, change, id) => h("button", {type: "button", className: "chip", ariaPressed: String(pressed), id, onclick: () => act.set(change)}, name);
      replace(viewBar, views(model, image).map(({id, name}) => chip(name, state.view === id, {view: id, covered: [], side: 0}, `view-${id}`)));
      const asks = ["attention", "filtered"].includes(state.view);
      tokenBar.hidden = !asks;
      const patch = state.token >= tokens.length ? state.token : Math.min(tokens.length + Math.floor(model.facts.grid[0] / 2) * model.facts.grid[1] + Math.floor(model.facts.grid[1] / 2));
      replace(tokenBar, [...tokens.map((name, number) => chip(name, state.token === number, {token: number}, `token-${number}`)), chip(tokenName(model, patch), state.token >= tokens.length, {token: patch}, "token-patch")]);
      const layered = asks || (state.view === "features" && image.facts.features.length > 1);
      layerField.hidden = !layered;
      layerLabel.textContent = layers ? "layer" : "stage";
      layer.max = layers ? layers - 1 : image.facts.features.length - 1;
      layer.value = state.layer;
      layerOut.textContent = state.layer;
      headField.hidden = !asks;
      if (head.options.length !== heads + 1) replace(head, [h("option", {value: -1}, "mean of all"), ...Array.from({length: heads}, (_, number) => h("option", {value: number}, `head ${number}`))]);
      head.value = state.head;
      const shown = heatOf(context);
      opacityField.hidden = !shown;
      opacity.value = state.opacity;
      overlayField.hidden = !shown || shown.kind !== "heat" || Boolean(shown.overlay);
      overlay.value = state.overlay;
      look.ariaPressed = String(state.tool === "look");
      coverButton.ariaPressed = String(state.tool === "cover");
      const canAnswer = image.facts.classes.length > 0, canCover = canAnswer && (source.served || Boolean(image.arrays.covered));
      coverButton.disabled = !canCover;
      const offered = canAnswer ? shuffles.filter(side => source.served || image.facts.shuffled[side]) : [];
      replace(shuffleBar, offered.map(side => chip(side === 1 ? "Shuffle patches" : `Shuffle ${side} x ${side} blocks`, state.side === side, {side, covered: [], view: "image", seed: source.served && state.side === side ? state.seed + 1 : state.seed}, `shuffle-${side}`)));
      reset.hidden = !(state.covered.length || state.side || state.tool === "cover");
      toolNote.textContent = !canAnswer ? image.facts.missing.answer ?? "" : !canCover ? "Covering patches was left out of this file (--no-cover); vitlab serve computes it." : state.tool === "cover" && !source.served ? "In a file one patch at a time is covered; vitlab serve covers as many as you touch." : model.facts.missing.shuffle ?? "";
      toolNote.hidden = !toolNote.textContent;
      replace(shots, (source.files ?? source.start.images).map((entry, number) => shot(entry, number, context, act)));
      choose.hidden = !source.served;
      canvas.classList.toggle("covering", state.tool === "cover");
      paint();
    },
  };
}

function shot(entry, number, {source, state}, act) {
  const name = entry.name ?? entry, picture = h("img", {alt: name, width: 56, height: 56, src: source.served ? act.thumbnail(number) : source.start.thumbnails[number]});
  return h("button", {type: "button", className: "shot", ariaPressed: String(state.image === number), title: name, onclick: () => act.set({image: number, covered: [], side: 0})}, picture);
}

function replace(parent, children) {
  const focused = document.activeElement?.id && parent.contains(document.activeElement) ? document.activeElement.id : null;
  parent.replaceChildren(...children);
  if (focused) document.getElementById(focused)?.focus();
}

export function answerPanel() {
  const body = h("div", {id: "answer"}), note = h("p", {className: "quiet small"}), root = card("answer", "Answer", body, note);
  return {
    id: "answer", root,
    available: ({image}) => image.facts.classes.length > 0,
    update({image, changed, state}) {
      const {labels, classes, probabilities} = image.facts;
      const own = labels.map((label, k) => ({label, class: classes[k], probability: probabilities[k]}));
      const before = new Map(own.map(({class: number, probability}) => [number, probability]));
      body.replaceChildren(changed ? bars(changed.answer, {before}) : bars(own));
      note.textContent = changed ? `With ${state.side ? "patches shuffled" : `${state.covered.length} patch${state.covered.length > 1 ? "es" : ""} covered`}; the line in a bar marks the probability before.` : "";
      note.hidden = !changed;
    },
  };
}

export function lensPanel(act) {
  const holder = h("div"), words = h("p"), root = card("lens", "When does it know?", words, holder);
  return {
    id: "lens", root,
    available: ({image}) => Boolean(image.arrays.lens),
    update({image, model, state}) {
      const [layers, count] = image.shapes.lens, {labels} = image.facts, lens = image.arrays.lens, values = k => Array.from({length: layers}, (_, layer) => lens[layer * count + k]);
      const curves = labels.slice(0, 5).map((name, k) => ({name, values: values(k)}));
      let first = layers - 1;
      const leads = layer => { for (let k = 1; k < count; k++) if (lens[layer * count + k] > lens[layer * count]) return false; return true; };
      while (first > 0 && leads(first - 1)) first--;
      words.textContent = `The head reads ${model.facts.reads} after every layer, as if it were the last. “${labels[0]}” leads from layer ${first} on.`;
      holder.replaceChildren(curveChart({curves, at: state.layer, title: `Probability of ${labels.slice(0, 5).join(", ")} after each layer`, pick: layer => act.set({layer})}), table(curves, layers));
    },
  };
}

// The numbers of a chart, for those who cannot see it and those who want them.
function table(curves, layers) {
  const rows = Array.from({length: layers}, (_, layer) => h("tr", {}, h("th", {scope: "row"}, layer), ...curves.map(({values}) => h("td", {}, percent(values[layer])))));
  return h("details", {}, h("summary", {}, "The numbers"), h("div", {className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Probabilities after each layer"}, h("table", {}, h("thead", {}, h("tr", {}, h("th", {scope: "col"}, "layer"), ...curves.map(({name}) => h("th", {scope: "col"}, name)))), h("tbody", {}, ...rows))));
}

export function embeddingPanel() {
  const patch = h("canvas", {className: "patch", width: 96, height: 96, role: "img"}), strips = h("div", {className: "strips"}), filters = h("img", {className: "filters", alt: "Learned filters"}), words = h("p"), under = h("p", {className: "quiet small"});
  const root = card("embedding", "A patch becomes a vector", words, h("div", {className: "embed"}, patch, strips), filters, under);
  let drawn = null;
  return {
    id: "embedding", root,
    available: ({image}) => Boolean(image.arrays.embedding),
    update({state, model, image}) {
      const {grid, step, tokens, width} = model.facts, place = Math.max(0, state.token - tokens.length), count = image.shapes.embedding[1];
      const [top, left] = [Math.floor(place / grid[1]) * step[0], (place % grid[1]) * step[1]], pen = patch.getContext("2d");
      pen.imageSmoothingEnabled = false;
      pen.clearRect(0, 0, 96, 96);
      pen.drawImage(image.bitmap, left, top, step[1], step[0], 0, 0, 96, 96);
      patch.ariaLabel = `Pixels of ${tokenName(model, tokens.length + place)}`;
      words.textContent = `${tokenName(model, tokens.length + place)} of ${step[0]} x ${step[1]} pixels, times learned filters, is a vector of ${width} numbers. Its position's vector is added; the sum enters layer 0.`;
      const scale = image.facts.embedding_scale, own = image.arrays.embedding.subarray(place * count, (place + 1) * count);
      const embedded = scale ? Float32Array.from(own, code => (code - 128) * scale) : own;
      const rows = [["patch", embedded]];
      const positions = model.arrays.positions;
      if (positions) {
        const position = positions.subarray(place * count, (place + 1) * count);
        rows.push(["position", position], ["sum", embedded.map((value, n) => value + position[n])]);
      }
      const most = Math.max(...rows.map(([, values]) => largestOf(Array.from(values, Math.abs))));
      strips.replaceChildren(...rows.map(([name, values]) => {
        const strip = h("canvas", {width: count, height: 1, role: "img", ariaLabel: `${name}: ${count} numbers from ${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)}`});
        strip.getContext("2d").drawImage(pixelCanvas(1, count, n => diverging(values[n] / most)), 0, 0);
        return h("div", {className: "strip"}, h("span", {}, name), strip);
      }));
      const content = model.arrays.filters;
      filters.hidden = !content;
      if (content && drawn !== content) { drawn = content; filters.src = URL.createObjectURL(new Blob([content])); }
      under.textContent = `${count < width ? `The first ${count} of ${width} numbers; orange is above zero, blue below. ` : "Orange is above zero, blue below. "}${content ? `Below: ${model.facts.filters_of === "patch embedding" ? "the principal components of all filters" : "filters of the first convolution"}.` : ""}`;
    },
  };
}

export function filtersPanel() {
  const picture = h("img", {className: "filters", alt: "Learned filters of the first convolution"}), root = card("filters", "Filters on the pixels", h("p", {}, "The first convolution slides these learned filters over the image."), picture);
  let drawn = null;
  return {
    id: "filters", root,
    available: ({model, image}) => Boolean(model.arrays.filters) && !image.arrays.embedding,
    update({model}) {
      const content = model.arrays.filters;
      if (drawn !== content) { drawn = content; picture.src = URL.createObjectURL(new Blob([content])); }
    },
  };
}

export function headsPanel(act) {
  const words = h("p"), grid = h("div", {className: "heads", role: "radiogroup", ariaLabel: "Heads of all layers"}), root = card("heads", "All heads of all layers", words, h("div", {className: "scroll"}, grid));
  let made = "", tiles = [];
  const focus = (layer, head) => tiles.find(tile => tile.layer === layer && tile.head === head)?.button.focus();
  return {
    id: "heads", root,
    available: ({rows}) => Boolean(rows),
    update(context) {
      const {state, model} = context, {layers, heads, tokens, grid: patches} = model.facts, key = `${layers} ${heads}`;
      if (made !== key) {
        made = key;
        tiles = [];
        grid.style.setProperty("--layers", layers);
        const choose = (layer, head) => act.set({layer, head, view: act.state().view === "filtered" ? "filtered" : "attention", covered: [], side: 0});
        const cells = [h("span", {className: "corner", ariaHidden: "true"}, "head")];
        for (let layer = 0; layer < layers; layer++) cells.push(h("span", {className: "index", ariaHidden: "true"}, layer));
        for (const head of [...Array(heads).keys(), -1]) {
          cells.push(h("span", {className: "index row", ariaHidden: "true"}, head < 0 ? "mean" : head));
          for (let layer = 0; layer < layers; layer++) {
            const canvas = h("canvas", {width: patches[1], height: patches[0]});
            const button = h("button", {type: "button", role: "radio", className: "tile", ariaLabel: `layer ${layer}, ${head < 0 ? "mean of all heads" : `head ${head}`}`, onclick: () => choose(layer, head)}, canvas);
            button.addEventListener("keydown", event => {
              const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
              if (!move) return;
              event.preventDefault();
              const order = [...Array(heads).keys(), -1], at = order.indexOf(head) + move[1], next = Math.min(layers - 1, Math.max(0, layer + move[0]));
              const other = order[Math.min(heads, Math.max(0, at))];
              choose(next, other);
              focus(next, other);
            });
            tiles.push({layer, head, canvas, button});
            cells.push(button);
          }
        }
        grid.replaceChildren(...cells);
      }
      const filtered = state.view === "filtered";
      words.textContent = `What the ${tokenName(model, context.token)} ${filtered ? "takes from" : "attends to"}. Layers go from left to right, heads from top to bottom; each map has its own scale.`;
      for (const {layer, head, canvas, button} of tiles) {
        const values = attentionRow(context, layer, head, filtered).subarray(tokens.length), most = largestOf(values);
        if (canvas.width !== patches[1] || canvas.height !== patches[0]) [canvas.width, canvas.height] = [patches[1], patches[0]];
        canvas.getContext("2d").drawImage(pixelCanvas(patches[0], patches[1], n => ramp(most ? lifted(values[n] / most) : 0)), 0, 0);
        const chosen = layer === state.layer && head === state.head;
        button.ariaChecked = String(chosen);
        button.tabIndex = chosen ? 0 : -1;
      }
    },
  };
}

// The tokens that get most, each with its patch.
export function strongestPanel() {
  const list = h("ol", {className: "strongest", id: "strongest"}), words = h("p"), root = card("strongest", "Where it looks most", words, list);
  return {
    id: "strongest", root,
    available: ({rows}) => Boolean(rows),
    update(context) {
      const {state, model, image} = context, {tokens, grid, step} = model.facts, filtered = state.view === "filtered";
      const row = attentionRow(context, state.layer, state.head, filtered), order = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 6);
      words.textContent = `The ${tokenName(model, context.token)} ${filtered ? "takes most from" : "attends most to"} these, in layer ${state.layer}, ${state.head < 0 ? "mean of all heads" : `head ${state.head}`}. Together they get ${percent(order.reduce((sum, token) => sum + row[token], 0))}.`;
      list.replaceChildren(...order.map(token => {
        const place = token - tokens.length, picture = h("canvas", {width: 48, height: 48, ariaHidden: "true"}), pen = picture.getContext("2d");
        if (place >= 0) {
          pen.imageSmoothingEnabled = false;
          pen.drawImage(image.bitmap, (place % grid[1]) * step[1], Math.floor(place / grid[1]) * step[0], step[1], step[0], 0, 0, 48, 48);
        } else {
          pen.fillStyle = "#0b62a8";
          pen.fillRect(0, 0, 48, 48);
          pen.fillStyle = "#fff";
          pen.font = "600 15px system-ui, sans-serif";
          pen.textAlign = "center";
          pen.fillText({"class token": "[cls]", "distillation token": "[dist]"}[tokens[token]] ?? "[reg]", 24, 29);
        }
        const track = h("span", {className: "track", ariaHidden: "true"}, h("i"));
        track.firstChild.style.width = `${100 * row[token] / row[order[0]]}%`;
        const item = h("li", {}, picture, h("span", {className: "label"}, tokenName(model, token)), h("span", {className: "value"}, showValue(row[token], roughly(image, context.token) ? "about" : "share")), track);
        item.dataset.value = row[token];
        item.dataset.token = token;
        return item;
      }));
    },
  };
}

export function distancePanel(act) {
  const holder = h("div"), words = h("p"), root = card("distance", "How far heads look", words, holder);
  return {
    id: "distance", root,
    available: ({image}) => Boolean(image.arrays.distance),
    update({state, model, image}) {
      const {layers, heads, grid, step} = model.facts, values = image.arrays.distance, largest = Math.max(1, largestOf(values)), most = [10, 20, 30, 40, 50, 75, 100, 125, 150, 200, 250, 300, 400, 500].find(size => largest <= size) ?? largest;
      const near = layer => { let least = Infinity; for (let head = 0; head < heads; head++) least = Math.min(least, values[layer * heads + head]); return least; };
      words.textContent = `Each dot is a head: the mean distance between a patch and what it attends to. The image is ${grid[1] * step[1]} pixels wide. In layer 0 the nearest head looks ${near(0).toFixed(0)} pixels far, in the last layer ${near(layers - 1).toFixed(0)}.`;
      holder.replaceChildren(distanceChart({values, layers, heads, at: [state.layer, state.head], most, unit: "pixels", title: `Attention distance of ${layers * heads} heads, from ${Math.min(...values).toFixed(0)} to ${largestOf(values).toFixed(0)} pixels`, pick: (layer, head) => act.set({layer, head, view: "attention"})}));
    },
  };
}

export function positionPanel() {
  const canvas = h("canvas", {className: "small-map", role: "img"}), words = h("p"), root = card("positions", "Positions", words, canvas);
  return {
    id: "positions", root,
    available: ({model}) => Boolean(model.arrays.similarity),
    update({state, model}) {
      const {grid, tokens} = model.facts, place = Math.max(0, state.token - tokens.length), count = grid[0] * grid[1], own = model.arrays.similarity.subarray(place * count, (place + 1) * count);
      [canvas.width, canvas.height] = [grid[1], grid[0]];
      canvas.getContext("2d").drawImage(pixelCanvas(grid[0], grid[1], n => ramp(own[n] / 255)), 0, 0);
      canvas.ariaLabel = `Similarity of the position of ${tokenName(model, tokens.length + place)} to all others`;
      words.textContent = `The position of ${tokenName(model, tokens.length + place)} compared with all others, by the cosine of their vectors: yellow is alike. Touch another patch.`;
    },
  };
}

export function featuresPanel(act) {
  const strip = h("div", {className: "film", role: "group", ariaLabel: "Features after each layer"}), words = h("p"), root = card("features", "Patches become things", words, h("div", {className: "scroll"}, strip));
  return {
    id: "features", root,
    available: ({image}) => image.facts.features.length > 0,
    update({state, model, image}) {
      const {layers} = model.facts;
      words.textContent = `The three strongest principal components of the ${layers ? "patches" : "places"}' features as colours: what is alike gets one colour. From left to right, ${layers ? "layer" : "stage"} by ${layers ? "layer" : "stage"}.`;
      replace(strip, image.facts.features.map(([down, across], number) => {
        const colours = image.arrays[`features.${number}`], canvas = h("canvas", {width: across, height: down});
        canvas.getContext("2d").drawImage(pixelCanvas(down, across, n => [colours[3 * n], colours[3 * n + 1], colours[3 * n + 2]]), 0, 0);
        const at = layers ? number - 1 : number, chosen = state.view === "features" && (layers ? Math.max(0, at) === state.layer && (number > 0) : at === state.layer);
        const button = h("button", {type: "button", id: `film-${number}`, className: "tile", ariaPressed: String(chosen), ariaLabel: number || !layers ? featureName(model, number) : "in: embedded patches", onclick: () => act.set({view: "features", layer: Math.max(0, at), covered: [], side: 0})}, canvas, h("span", {ariaHidden: "true"}, layers ? (number ? number - 1 : "in") : number));
        return button;
      }));
    },
  };
}

export function neighboursPanel() {
  const list = h("ol", {className: "neighbours"}), map = h("canvas", {className: "map", width: 640, height: 480, role: "img"}), words = h("p"), root = card("neighbours", "Nearest images", words, list, map, h("p", {className: "quiet small"}, "The index in two dimensions: the strongest principal components of its features. A colour is a label; the ring is this image."));
  return {
    id: "neighbours", root,
    available: ({image}) => Boolean(image.facts.neighbours),
    update({model, image}) {
      const {count} = model.facts.neighbours, {images, at} = image.facts.neighbours, points = model.arrays.map, codes = model.arrays.map_labels;
      words.textContent = `The most similar of ${count.toLocaleString("en")} images in the index, by the cosine of their features.`;
      list.replaceChildren(...images.map((entry, number) => {
        const content = image.arrays[`neighbour.${number}`];
        const row = h("li", {}, content ? h("img", {alt: "", src: act_url(content, entry.kind)}) : null, h("span", {}, entry.label ?? entry.name), h("small", {className: "quiet"}, entry.similarity.toFixed(3)));
        row.dataset.value = entry.similarity;
        row.title = entry.name;
        return row;
      }));
      const pen = map.getContext("2d"), {width, height} = map, x = value => 20 + (value + 1) / 2 * (width - 40), y = value => 20 + (1 - value) / 2 * (height - 40);
      pen.clearRect(0, 0, width, height);
      for (let n = 0; n < codes.length; n++) {
        pen.fillStyle = codes[n] === 65535 ? "#8888" : `hsl(${(codes[n] * 137.5) % 360} 60% 50% / .65)`;
        pen.beginPath();
        pen.arc(x(points[2 * n]), y(points[2 * n + 1]), 3.5, 0, 7);
        pen.fill();
      }
      for (const [size, colour, thick] of [[12, "#fff", 7], [12, MARK, 4]]) {
        pen.lineWidth = thick;
        pen.strokeStyle = colour;
        pen.beginPath();
        pen.arc(x(at[0]), y(at[1]), size, 0, 7);
        pen.stroke();
      }
      map.ariaLabel = `Map of ${codes.length} images of the index and this one, whose nearest is ${images[0]?.label ?? images[0]?.name}`;
    },
  };
}

const urls = new WeakMap();

function act_url(content, kind) {
  if (!urls.has(content)) urls.set(content, URL.createObjectURL(new Blob([content], {type: kind})));
  return urls.get(content);
}

export function besidePanel(act) {
  const choice = h("div", {className: "chips", role: "group", ariaLabel: "Model to compare with"}), pair = h("div", {className: "pair"}), words = h("p"), root = card("beside", "Two models side by side", words, choice, pair);
  return {
    id: "beside", root,
    available: ({source}) => source.start.models.length > 1,
    update({state, source, model, image, beside}) {
      words.textContent = "What each model looks at for the class that it predicts.";
      replace(choice, source.start.models.map(({name}, place) => (place === state.model ? null : h("button", {type: "button", className: "chip", id: `beside-${place}`, ariaPressed: String(state.beside === place), onclick: () => act.set({beside: state.beside === place ? -1 : place})}, name))).filter(Boolean));
      pair.hidden = !beside;
      if (!beside) return;
      pair.replaceChildren(...[{model, image}, beside].map(one => {
        const canvas = h("canvas", {role: "img"}), scale = fitCanvas(canvas, one.image.facts.size, 360), pen = canvas.getContext("2d");
        drawImage(pen, one.image.bitmap, scale);
        const both = [image, beside.image].every(each => each.maps.has("occlusion"));
        const name = both && state.view === "occlusion" ? "occlusion" : ["relevance", "activation", "occlusion"].find(each => one.image.maps.has(each));
        let title = "";
        if (name) {
          const shown = evidenceOf(one.model, one.image, name);
          title = shown.title;
          drawHeat(pen, shown, scale, state.opacity / 100, state.overlay);
        }
        canvas.ariaLabel = `${one.model.facts.name}: ${title}`;
        const {labels, classes, probabilities} = one.image.facts;
        return h("div", {}, h("h3", {}, one.model.facts.name), canvas, h("p", {className: "small quiet"}, title), bars(labels.map((label, k) => ({label, class: classes[k], probability: probabilities[k]})), {count: 3}));
      }));
    },
  };
}

export function aboutPanel() {
  const list = h("dl", {className: "facts"}), root = card("about", "This model", list);
  return {
    id: "about", root,
    available: () => true,
    update({model, image, source}) {
      const {facts} = model, rows = [["model", `${facts.name} (${facts.family.replace(/^an? /, "")})`], [facts.layers ? "patches" : "windows to cover", `${facts.grid.join(" x ")}, each ${facts.step.join(" x ")} pixels`]];
      if (facts.layers) rows.push(["layers and heads", `${facts.layers} x ${facts.heads}, counted from 0`], ["width", facts.width], ["head reads", facts.reads]);
      const group = image.facts.attention.at(-1);
      if (!source.served && group) rows.push(["attention in this file", `${group.queries.length + (image.facts.attention.length > 1 ? image.facts.attention[0].queries.length : 0)} of ${facts.tokens.length + facts.grid[0] * facts.grid[1]} tokens as queries, in ${group.levels} steps up to the largest value of a row`]);
      for (const [part, why] of Object.entries({...facts.missing, ...image.facts.missing})) rows.push([`no ${part}`, why]);
      list.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
    },
  };
}
