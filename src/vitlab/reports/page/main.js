// Puts the page together: reads the state from the address, loads what it needs, and updates the panels.

import {h} from "./draw.js";
import {aboutPanel, answerPanel, besidePanel, distancePanel, embeddingPanel, featuresPanel, filtersPanel, headsPanel, lensPanel, neighboursPanel, positionPanel, stagePanel, strongestPanel} from "./panels.js";
import {FileSource, ServerSource, nearestStored} from "./source.js";
import {fitted, readState, writeState} from "./state.js";
import {enter, stepsOf} from "./tour.js";

const start = JSON.parse(document.getElementById("start").textContent);
const source = start.served ? new ServerSource(start) : new FileSource(start);
const element = id => document.getElementById(id);
let state = readState(location.hash), shown = null, asked = 0;
const thumbnails = new Map();

const act = {
  set(change) { state = {...state, ...change}; refresh(); },
  state: () => state,
  add(file) {
    if (!source.served) return;
    const image = source.add(file);
    act.set({image, covered: [], side: 0});
  },
  thumbnail(number) {
    const {name, file} = source.files[number];
    if (!file) return `${start.assets}/${encodeURIComponent(name)}`;
    if (!thumbnails.has(number)) thumbnails.set(number, URL.createObjectURL(file));
    return thumbnails.get(number);
  },
};

const stage = stagePanel(element("stage"), act);
const panels = [answerPanel(), lensPanel(act), headsPanel(act), strongestPanel(), featuresPanel(act), distancePanel(act), embeddingPanel(), filtersPanel(), positionPanel(), besidePanel(act), neighboursPanel(), aboutPanel()];
const guide = h("section", {className: "card guide", id: "card-guide", ariaLabel: "Guided tour"});

function say(words) {
  element("status").textContent = words;
}

// Load what the state shows, then update everything; a later call overtakes an earlier one.
async function refresh() {
  const mine = ++asked;
  document.documentElement.dataset.asked = String(mine);
  const place = start.models[state.model] ? state.model : 0;
  const count = (source.files ?? start.images).length, number = state.image >= 0 && state.image < count ? state.image : 0;
  if (source.served) say(shown && shown.state.image === number ? "" : "The model looks at the image …");
  try {
    const [model, image] = await Promise.all([source.model(place), source.image(place, number)]);
    if (mine !== asked) return;
    state = fitted({...state, model: place, image: number}, source, model, image);
    const token = nearestStored(image, model, state.token, source.served);
    const rows = image.facts.attention.length ? await source.rows(place, image, source.served ? state.token : token) : null;
    const changed = state.covered.length || state.side ? await source.changed(place, image, state) : null;
    const beside = start.models[state.beside] && state.beside !== place ? {model: await source.model(state.beside), image: await source.image(state.beside, number)} : null;
    if (mine !== asked) return;
    shown = {state, source, model, image, rows, token: source.served ? state.token : token, changed, beside};
    render(shown);
    say("");
    document.documentElement.dataset.ready = String(mine);
  } catch (error) {
    if (mine !== asked) return;
    say(error.message);
    document.documentElement.dataset.ready = String(mine);
    if (!shown) return;
    state = shown.state;
    if (source.files) source.files = source.files.filter((entry, place) => place < start.images.length || place !== number);
    render(shown);
  }
}

function render(context) {
  const {model, image} = context, touring = state.mode === "tour", steps = stepsOf(context);
  document.body.classList.toggle("tour", touring);
  element("mode-tour").ariaPressed = String(touring);
  element("mode-free").ariaPressed = String(!touring);
  element("subtitle").textContent = `${model.facts.name}: ${model.facts.layers ? `${model.facts.layers} layers of ${model.facts.heads} heads, ${model.facts.grid.join(" x ")} patches` : model.facts.family}`;
  element("footer").textContent = source.served ? "The server keeps no image: it is in memory while it is answered. Made with vitlab." : "Everything is in this file; nothing is asked of a network. Made with vitlab.";
  let wanted = panels.filter(panel => panel.available(context)), step = null;
  if (touring) {
    step = steps.find(each => each.id === state.step) ?? steps[0];
    wanted = step.cards.map(id => wanted.find(panel => panel.id === id)).filter(Boolean);
    guided(step, steps, context);
  }
  document.body.classList.toggle("with-tools", !touring || Boolean(step.tools));
  document.body.classList.toggle("with-picks", !touring || Boolean(step.picks));
  stage.update(context);
  for (const panel of wanted) panel.update(context);
  const cards = [...(touring ? [guide] : []), ...wanted.map(panel => panel.root)], holder = element("cards");
  if (cards.length !== holder.children.length || cards.some((each, place) => holder.children[place] !== each)) holder.replaceChildren(...cards);
  if (image.facts.name) document.title = `${image.facts.name} · ${start.title}`;
  const address = writeState(state);
  if (address !== location.hash && !(address === "#" && !location.hash)) history.replaceState(null, "", address);
}

function guided(step, steps, context) {
  const at = steps.indexOf(step), go = place => { act.set(enter(steps[place], shown)); element("guide-title")?.focus(); };
  const back = h("button", {type: "button", className: "plain", id: "back", disabled: at === 0, onclick: () => go(at - 1)}, "Back");
  const last = at === steps.length - 1;
  const next = h("button", {type: "button", className: "primary", id: "next", onclick: () => (last ? act.set({mode: "free"}) : go(at + 1))}, last ? "Explore" : "Next");
  const dots = h("ol", {className: "dots"}, ...steps.map((each, place) => {
    const dot = h("button", {type: "button", title: each.title, ariaLabel: `Step ${place + 1}: ${each.title}`, onclick: () => go(place)});
    if (place === at) dot.setAttribute("aria-current", "step");
    return h("li", {}, dot);
  }));
  const focused = document.activeElement?.id;
  guide.replaceChildren(h("p", {className: "count quiet"}, `Step ${at + 1} of ${steps.length}`), h("h2", {id: "guide-title", tabIndex: -1}, step.title), ...step.words(context).map(words => h("p", {}, words)), h("div", {className: "way"}, back, dots, next));
  if (focused === "next" || focused === "back") element(focused)?.focus();
}

element("mode-tour").addEventListener("click", () => {
  const steps = stepsOf(shown);
  act.set({mode: "tour", ...enter(steps.find(step => step.id === state.step) ?? steps[0], shown)});
});
element("mode-free").addEventListener("click", () => act.set({mode: "free"}));

const themes = ["", "light", "dark"];
element("theme").addEventListener("click", () => {
  const root = document.documentElement, next = themes[(themes.indexOf(root.dataset.theme ?? "") + 1) % 3];
  if (next) root.dataset.theme = next; else delete root.dataset.theme;
  element("theme").textContent = `theme: ${next || "system"}`;
});

if (start.models.length > 1) {
  const choice = h("select", {id: "model", ariaLabel: "Model", onchange: () => act.set({model: Number(choice.value), beside: state.beside === Number(choice.value) ? -1 : state.beside, layer: -1, head: -1, covered: [], side: 0})}, ...start.models.map(({name}, place) => h("option", {value: place}, name)));
  choice.value = state.model;
  element("model-choice").append(choice);
}

if (start.keyed) {
  const key = h("input", {type: "password", id: "key", placeholder: "API key", ariaLabel: "API key", autocomplete: "off", onchange: () => { source.key = key.value.trim(); refresh(); }});
  element("model-choice").append(key);
}

if (source.served) {
  const files = transfer => [...(transfer?.files ?? [])].filter(file => file.type.startsWith("image/") || !file.type);
  document.addEventListener("dragover", event => { event.preventDefault(); document.body.classList.add("dragging"); });
  document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  document.addEventListener("drop", event => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    const [first] = files(event.dataTransfer);
    if (first) act.add(first); else say("What was dropped is not an image file.");
  });
  document.addEventListener("paste", event => {
    const [first] = files(event.clipboardData);
    if (first) act.add(first);
  });
}

document.addEventListener("keydown", event => {
  if (state.mode !== "tour" || !["PageDown", "PageUp"].includes(event.key)) return;
  event.preventDefault();
  element(event.key === "PageDown" ? "next" : "back")?.click();
});
let narrow = innerWidth < 600;
window.addEventListener("resize", () => { if (shown && narrow !== innerWidth < 600) { narrow = !narrow; render(shown); } });
window.addEventListener("hashchange", () => { state = readState(location.hash); refresh(); });
refresh();
