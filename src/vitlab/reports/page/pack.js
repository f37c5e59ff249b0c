// Reads what vitlab.io.arrays writes, and attention as vitlab.reports.explorer codes it.

const TYPES = {uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array};

export function unpack(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const arrays = {}, shapes = {};
  for (const [name, type, shape, offset] of header.arrays) {
    arrays[name] = new TYPES[type](buffer, 4 + size + offset, shape.reduce((product, n) => product * n, 1));
    shapes[name] = shape;
  }
  return {facts: header.facts, arrays, shapes};
}

export async function decompress(text) {
  const packed = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// The attention of one stored token in every layer and head, L * H * N values; null if it is not stored.
export function storedRows(image, token) {
  for (const [group, {queries, levels}] of image.facts.attention.entries()) {
    const place = queries.indexOf(token);
    if (place < 0) continue;
    const codes = image.arrays[`attention.${group}`], largest = image.arrays[`largest.${group}`];
    const [layers, heads, stored, tokens] = image.shapes[`attention.${group}`];
    const count = layers * heads, rows = new Float32Array(count * tokens);
    for (let row = 0; row < count; row++) {
      const scale = largest[row * stored + place], from = (row * stored + place) * tokens;
      for (let n = 0; n < tokens; n++) {
        const code = codes[from + n];
        rows[row * tokens + n] = levels ? (code / levels) ** 2 * scale : code;
      }
    }
    return rows;
  }
  return null;
}
