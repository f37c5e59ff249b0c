// What is shown, as values that fit into the address: a link shows the same view.

export const DEFAULTS = {
  mode: "tour", step: "image", model: 0, beside: -1, image: 0, view: "image", layer: -1, head: -1, token: -1, opacity: 70, overlay: "heat",
  tool: "look", covered: [], side: 0, seed: 0,
};

const NUMBERS = new Set(["model", "beside", "image", "layer", "head", "token", "opacity", "side", "seed"]);

export function readState(hash) {
  const state = {...DEFAULTS, covered: []};
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!(key in DEFAULTS)) continue;
    if (key === "covered") state.covered = text.split(".").map(Number).filter(n => Number.isInteger(n) && n >= 0);
    else if (!NUMBERS.has(key)) state[key] = text;
    else if (Number.isInteger(Number(text))) state[key] = Number(text);
  }
  return state;
}

export function writeState(state) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (key === "covered" ? value.length : value !== DEFAULTS[key]) query.set(key, key === "covered" ? value.join(".") : value);
  }
  return `#${query}`;
}

// A state that fits what is loaded: every number within its range, every word one that exists.
export function fitted(state, source, model, image) {
  const {layers, heads, grid, tokens, shuffles} = model.facts;
  const within = (value, count) => (value >= 0 && value < count ? value : -1);
  const patches = grid[0] * grid[1], middle = tokens.length + Math.floor(grid[0] / 2) * grid[1] + Math.floor(grid[1] / 2);
  const token = within(state.token, tokens.length + patches);
  return {
    ...state,
    mode: state.mode === "free" ? "free" : "tour",
    layer: within(state.layer, layers) < 0 ? Math.max(layers - 1, 0) : state.layer,
    head: within(state.head, heads),
    token: token < 0 ? middle : token,
    opacity: Math.min(100, Math.max(0, state.opacity)),
    overlay: state.overlay === "shade" ? "shade" : "heat",
    tool: state.tool === "cover" ? "cover" : "look",
    covered: state.covered.filter(place => place < patches).slice(0, source.served ? patches : 1),
    side: shuffles.includes(state.side) ? state.side : 0,
    view: views(model, image).some(view => view.id === state.view) ? state.view : "image",
  };
}

// The views that this model has of this image, in the order of the story.
export function views(model, image) {
  const has = name => image.maps.has(name);
  const {attention, features} = image.facts;
  return [
    {id: "image", name: "Image", show: true},
    {id: "patches", name: "Patches", show: true},
    {id: "positions", name: "Positions", show: Boolean(model.arrays.similarity)},
    {id: "attention", name: "Attention", show: attention.length > 0},
    {id: "filtered", name: "Filtered value", show: attention.length > 0 && Boolean(image.arrays.norms)},
    {id: "features", name: "Features", show: features.length > 0},
    {id: "rollout", name: "Rollout", show: has("rollout")},
    {id: "pool", name: "Pool", show: has("pool")},
    {id: "relevance", name: "Relevance", show: has("relevance")},
    {id: "activation", name: "Grad-CAM", show: has("activation")},
    {id: "occlusion", name: "Occlusion", show: has("occlusion")},
  ].filter(view => view.show);
}
