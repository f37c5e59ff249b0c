// The guided tour: the story of the talks, a few sentences a step. A step without its parts is left out.

import {tokenName} from "./panels.js";
import {views} from "./state.js";

// Each step: what it shows (`view`), which cards stand with it, and whether tools, tokens or layers can be used.
export const STEPS = [
  {
    id: "image", title: "An image and an answer", view: "image", cards: ["answer"],
    words: ({model, image}) => [`This is what ${model.facts.name} gets: ${image.facts.size.join(" x ")} pixels, scaled and cut from your image.`, image.facts.classes.length ? "Beside it stands its answer: the classes that it finds most probable. The tour follows the way from one to the other." : "It has no classes: it turns images into features. The tour follows the way there."],
  },
  {
    id: "patches", title: "An image is worth its patches", view: "patches", cards: ["embedding"], needs: ({image}) => Boolean(image.arrays.embedding),
    words: ({model}) => [`The image is cut into ${model.facts.grid.join(" x ")} patches of ${model.facts.step.join(" x ")} pixels: the words of a sentence. Touch one.`, "Each patch is projected onto learned filters and becomes a vector. From here on there are no pixels any more."],
  },
  {
    id: "filters", title: "Filters slide over pixels", view: "image", cards: ["filters"], needs: ({image, model}) => !image.arrays.embedding && Boolean(model.arrays.filters),
    words: ({model}) => [`${model.facts.name} has no patches. Small learned filters slide over the whole image, layer by layer, and each place sees its neighbours only.`],
  },
  {
    id: "positions", title: "Where was it?", view: "positions", patch: true, cards: ["positions"], needs: ({model}) => Boolean(model.arrays.similarity),
    words: () => ["A set of vectors has no order. So a position vector is added to each patch.", "Nobody told the model that the image is a plane. The colours show how alike the position of the touched patch is to the others."],
  },
  {
    id: "attention", title: "Every patch asks all others", view: "attention", patch: true, layer: layers => Math.floor(layers / 2), cards: ["strongest"], needs: ({rows}) => Boolean(rows), picks: true,
    words: ({model, token, state}) => [`In each layer every token compares its query with the keys of all tokens. The softmax of these products says how much it takes from each: its attention, which sums to one.`, `Here the ${tokenName(model, token)} asks, in layer ${state.layer}. Touch another patch, or move the layer.`],
  },
  {
    id: "filtered", title: "What it takes: the filtered value", view: "filtered", patch: true, layer: layers => Math.floor(layers / 2), cards: ["strongest"], needs: ({rows, image}) => Boolean(rows && image.arrays.norms), picks: true,
    words: () => ["Attention is a filter over the values of the tokens. What passes is attention times the value vector; the image is lit by the length of that product.", "A token with much attention but a short value vector gives little."],
  },
  {
    id: "heads", title: "Many heads, many questions", view: "attention", cards: ["heads"], needs: ({rows}) => Boolean(rows), picks: true,
    words: ({model}) => [`Each of the ${model.facts.layers} layers asks ${model.facts.heads} questions at once: its heads. Some look at neighbours, some at things of the same kind, some at everything.`, "Choose a map to see it on the image."],
  },
  {
    id: "distance", title: "Near and far from the start", view: "attention", patch: true, layer: () => 0, cards: ["distance"], needs: ({image}) => Boolean(image.arrays.distance), picks: true,
    words: () => ["A convolution sees its neighbours first and the whole only at the end. Here some heads look across the image in the first layers already, while others stay near.", "Choose a dot."],
  },
  {
    id: "features", title: "Patches become things", view: "features", layer: layers => Math.floor(0.6 * layers), cards: ["features"], needs: ({image}) => image.facts.features.length > 0,
    words: ({model}) => [model.facts.layers ? "Layer by layer, each patch takes in what it attends to. Patches of one thing become alike: they get the same colour, and the thing stands out from the background." : "Stage by stage, places with the same content become alike: they get the same colour."],
  },
  {
    id: "read", title: "What the head reads", view: "rollout", cards: ["answer"], needs: ({image}) => image.maps.has("rollout"),
    words: ({model}) => [`In the end the head reads ${model.facts.reads}. Which patches came together in it?`, "Rollout follows the attention of all layers back to the image, with the residual connections."],
  },
  {
    id: "evidence", title: "Evidence for the class", view: ({image}) => (image.maps.has("relevance") ? "relevance" : "activation"), cards: ["answer", "beside"], needs: ({image}) => image.maps.has("relevance") || image.maps.has("activation"),
    words: ({image}) => [image.maps.has("relevance") ? `Rollout shows all that is read. Relevance weighs attention by the gradient of the class's logit: only what speaks for “${image.facts.target_label}” remains.` : `Grad-CAM weighs the last feature maps by the gradient of the class's logit: what speaks for “${image.facts.target_label}” is lit.`],
  },
  {
    id: "lens", title: "When does it know?", view: "image", cards: ["lens"], needs: ({image}) => Boolean(image.arrays.lens),
    words: () => ["The head can be put on the tokens after every layer, as if it were the last. The curve shows when the answer appears.", "Early layers have no answer yet: they make what the last layers read."],
  },
  {
    id: "what-if", title: "What if?", view: "image", cards: ["answer"], tools: true, needs: ({image, model, source}) => image.facts.classes.length > 0 && (source.served || Boolean(image.arrays.covered) || Object.keys(image.facts.shuffled).length > 0 || model.facts.shuffles.length === -1),
    words: ({source}) => [`Cover a patch ${source.served ? "or many " : ""}and see the answer change. Shuffle the patches: positions and neighbours are wrong then, and the model still knows more than one would think.`],
  },
  {
    id: "neighbours", title: "What is like it?", view: "image", cards: ["neighbours"], needs: ({image}) => Boolean(image.facts.neighbours),
    words: () => ["What the head reads is also a place among all images: those nearby look alike to the model."],
  },
  {
    id: "free", title: "Now explore", view: ({model, image}) => (views(model, image).some(view => view.id === "attention") ? "attention" : "features"), cards: ["about"],
    words: ({source}) => [`That is all of it. In “Explore” every part is at hand at once${source.served ? "; drop your own image anywhere on this page" : ""}.`],
  },
];

export function stepsOf(context) {
  return STEPS.filter(step => !step.needs || step.needs(context));
}

// The change of state that a step makes when it is entered.
export function enter(step, {model, image, state}) {
  const {layers, tokens, grid} = model.facts, change = {step: step.id, view: typeof step.view === "function" ? step.view({model, image}) : step.view, covered: [], side: 0, tool: "look"};
  if (step.layer) change.layer = Math.max(0, step.layer(layers || image.facts.features.length));
  if (step.layer) change.head = -1;
  if (step.patch && state.token < tokens.length) change.token = tokens.length + Math.floor(grid[0] / 2) * grid[1] + Math.floor(grid[1] / 2);
  if (step.id === "heads" && tokens.length) change.token = 0;
  return change;
}
