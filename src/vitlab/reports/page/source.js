// Where the numbers come from: blocks of this file, or a server that computes them.

import {decompress, storedRows, unpack} from "./pack.js";

async function withBitmap(pack) {
  const {arrays, facts} = pack;
  pack.bitmap = await createImageBitmap(new Blob([arrays.pixels], {type: facts.kind}));
  pack.maps = new Map(facts.maps.map(name => [name, arrays[`map.${name}`]]));
  return pack;
}

// The stored patch nearest to a token: a file may hold the attention of every second patch only.
export function nearestStored(image, model, token) {
  const prefix = model.facts.tokens.length, across = model.facts.grid[1];
  const stored = image.facts.attention.flatMap(group => group.queries);
  if (stored.includes(token) || token < prefix) return token;
  const row = Math.floor((token - prefix) / across), column = (token - prefix) % across;
  let best = token, least = Infinity;
  for (const other of stored) {
    if (other < prefix) continue;
    const far = (Math.floor((other - prefix) / across) - row) ** 2 + ((other - prefix) % across - column) ** 2;
    if (far < least) [best, least] = [other, far];
  }
  return best;
}

export class FileSource {
  constructor(start) {
    this.start = start;
    this.served = false;
    this.cache = new Map();
  }

  block(name) {
    if (!this.cache.has(name)) this.cache.set(name, decompress(document.getElementById(name).textContent).then(unpack));
    return this.cache.get(name);
  }

  model(place) { return this.block(this.start.models[place].block); }

  async image(model, place) {
    const pack = await this.block(this.start.models[model].images[place]);
    return pack.bitmap ? pack : withBitmap(pack);
  }

  async rows(model, image, token) { return storedRows(image, token); }

  async changed(model, image, {covered, side}) {
    const {facts, arrays} = image;
    if (side) {
      const answer = facts.shuffled[side];
      return answer && !covered.length ? {answer, order: Array.from(arrays[`order.${side}`])} : null;
    }
    if (!covered.length || !arrays.covered) return null;
    const count = facts.classes.length, from = covered[0] * count;
    const answer = facts.labels.map((label, k) => ({label, class: facts.classes[k], probability: arrays.covered[from + k]}));
    return {answer: answer.sort((a, b) => b.probability - a.probability).slice(0, 5), order: null};
  }
}

export class ServerSource {
  constructor(start) {
    this.start = start;
    this.served = true;
    this.cache = new Map();
    this.files = start.images.map(name => ({name, file: null}));
  }

  add(file) {
    this.files.push({name: file.name || "pasted image", file});
    return this.files.length - 1;
  }

  async ask(path, query, body) {
    const address = `${this.start.base}/${path}?${new URLSearchParams(query)}`;
    const headers = this.key ? {authorization: `Bearer ${this.key}`} : {};
    if (body) headers["content-type"] = body.type.startsWith("image/") ? body.type : "application/octet-stream";
    const answer = await fetch(address, body ? {method: "POST", body, headers} : {headers});
    if (answer.ok) return answer.arrayBuffer();
    let message = `the server answered ${answer.status}`;
    try {
      const told = await answer.json();
      message = told.error?.message ?? message;
    } catch { /* no JSON: the status alone */ }
    throw new Error(message);
  }

  once(key, make) {
    if (!this.cache.has(key)) {
      const made = make();
      this.cache.set(key, made);
      made.catch(() => this.cache.delete(key));
    }
    return this.cache.get(key);
  }

  async bytes(place) {
    const entry = this.files[place];
    if (!entry.file) {
      const answer = await fetch(`${this.start.assets}/${encodeURIComponent(entry.name)}`);
      if (!answer.ok) throw new Error(`${entry.name} cannot be read`);
      entry.file = await answer.blob();
    }
    return entry.file;
  }

  model(place) {
    const model = this.start.models[place].name;
    return this.once(`model ${place}`, async () => unpack(await this.ask("model", {model})));
  }

  image(place, number) {
    const model = this.start.models[place].name;
    return this.once(`image ${place} ${number}`, async () => {
      const pack = await withBitmap(unpack(await this.ask("image", {model, name: this.files[number].name}, await this.bytes(number))));
      pack.number = number;
      return pack;
    });
  }

  async rows(place, image, token) {
    const stored = storedRows(image, token);
    if (stored || !image.facts.attention.length) return stored;
    const model = this.start.models[place].name;
    return this.once(`rows ${place} ${image.number} ${token}`, async () => {
      const pack = unpack(await this.ask("attention", {model, token}, await this.bytes(image.number)));
      return pack.arrays.attention;
    });
  }

  async changed(place, image, {covered, side, seed}) {
    const model = this.start.models[place].name;
    const query = {model, covered: covered.join(",")};
    if (side) Object.assign(query, {side, seed});
    const pack = unpack(await this.ask("change", query, await this.bytes(image.number)));
    return {answer: pack.facts.answer, order: pack.arrays.order ? Array.from(pack.arrays.order) : null};
  }
}
