"""Attention between words: "The animal didn't cross the street because it was too tired", and what "it" attends to.

A Transformer of two layers, made of the blocks of `vitlab.models.vit`, learns in less than a minute to say what "it" means. The
sentences are made from lists of words: an adjective that only animals have, or only places, decides. The talk's two sentences are
never trained on, nor any other sentence with their two nouns together.

Axes: B batch, N words, D width, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.vit import ViTConfig
from vitlab.interpretation.drawing import COLOURS, INK, Style, entitle, new_paper, written
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models import Record
from vitlab.models.attention_variants import AttentionContext
from vitlab.models.vit import Block
from vitlab.studies.explained import Explained

_ANIMALS = ("animal", "dog", "horse", "child", "hen", "sheep", "goat", "cow", "duck", "man", "woman", "boy")
_PLACES = ("street", "road", "river", "field", "bridge", "square", "valley", "lake", "track", "yard", "canal", "park")
_OF_ANIMALS = ("tired", "scared", "hungry", "lazy", "weak", "sick", "shy", "sleepy")
_OF_PLACES = ("wide", "busy", "long", "crowded", "steep", "deep", "muddy", "icy")
_VERBS = ("cross", "reach", "leave", "enter")
_WORDS = ("The", "didn't", "the", "because", "it", "was", "too", *_ANIMALS, *_PLACES, *_OF_ANIMALS, *_OF_PLACES, *_VERBS)
_NUMBERS = {word: number for number, word in enumerate(_WORDS)}
_IT, _ANIMAL, _PLACE, _ADJECTIVE = 7, 1, 5, 10

SENTENCES = (
    "The animal didn't cross the street because it was too tired",
    "The animal didn't cross the street because it was too wide",
)


class SentenceTransformer(nn.Module):
    """Word and position embeddings, two blocks of a ViT, and the word that "it" means: logits over the vocabulary."""

    def __init__(self, *, width: int = 48, depth: int = 2, heads: int = 4, seed: int = 0) -> None:
        super().__init__()
        config = ViTConfig(width=width, depth=depth, heads=heads, mlp_width=2 * width)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.words = nn.Embedding(len(_WORDS), width)
            self.positions = nn.Parameter(0.1 * torch.randn(11, width))
            self.blocks = nn.ModuleList(Block(config, layer) for layer in range(depth))
            self.head = nn.Linear(width, len(_WORDS))

    def forward(self, words_BN: Tensor, record: Record | None = None) -> Tensor:
        z_BND = self.words(words_BN) + self.positions
        if record is not None:
            record.start(len(self.blocks))
        for layer, block in enumerate(self.blocks):
            z_BND = block(z_BND, AttentionContext(layer=layer, grid=(1, z_BND.shape[1]), prefix=0), record)
        logits_BV: Tensor = self.head(F.layer_norm(z_BND[:, _IT], z_BND.shape[2:]))
        return logits_BV


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sentences:
    """Sentences as numbers of words, (B, N), and the word that "it" means in each."""

    words_BN: Tensor
    meant_B: Tensor


def sentences() -> tuple[Sentences, Sentences]:
    """Training and test sentences: a seventh of the pairs of nouns, the talk's among them, is for the test alone."""
    train, test = list[tuple[list[int], int]](), list[tuple[list[int], int]]()
    for (a, animal), (b, place) in product(enumerate(_ANIMALS), enumerate(_PLACES)):
        held_out = (a + 3 * b) % 7 == 0
        for verb, (adjectives, meant) in product(_VERBS, ((_OF_ANIMALS, animal), (_OF_PLACES, place))):
            for adjective in adjectives:
                made = _numbers(f"The {animal} didn't {verb} the {place} because it was too {adjective}")
                (test if held_out else train).append((made, _NUMBERS[meant]))
    return _stacked(train), _stacked(test)


def _numbers(sentence: str) -> list[int]:
    return [_NUMBERS[word] for word in sentence.split()]


def _stacked(rows: Sequence[tuple[list[int], int]]) -> Sentences:
    return Sentences(words_BN=torch.tensor([words for words, _ in rows]), meant_B=torch.tensor([meant for _, meant in rows]))


def words(progress: ProgressCallback = silent, *, steps: int = 600) -> Explained:
    """Train the small Transformer: what "it" attends to in the talk's sentences, and how often it is right on new sentences."""
    train, test = sentences()
    model = SentenceTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        progress("training a Transformer on sentences", step, steps)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - step / steps)
        chosen = torch.randint(0, len(train.meant_B), (128,), generator=generator)
        loss = F.cross_entropy(model(train.words_BN[chosen]), train.meant_B[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    rows, seen = [], list[Tensor]()
    with torch.inference_mode():
        right = 100 * float((model(test.words_BN).argmax(1) == test.meant_B).float().mean())
        for sentence in SENTENCES:
            record = Record()
            logits_1V = model(torch.tensor([_numbers(sentence)]), record)
            maps_LHN = torch.stack([attention_1HNN[0, :, _IT] for attention_1HNN in record.attention_BHNN])
            seen.append(maps_LHN)
            mean_N = maps_LHN[-1].mean(0)
            rows.append(
                (
                    {"sentence": f"... it was too {sentence.split()[-1]}", '"it" means': _WORDS[int(logits_1V.argmax())]},
                    {
                        "attends to animal": round(float(mean_N[_ANIMAL]), 3),
                        "to street": round(float(mean_N[_PLACE]), 3),
                        "first layer, to the adjective": round(float(maps_LHN[0].mean(0)[_ADJECTIVE]), 3),
                        "best head, to what it means": round(
                            float(maps_LHN[-1][:, _PLACE if sentence.endswith("wide") else _ANIMAL].max()), 3
                        ),
                    },
                )
            )
    finding = f"{right:.1f} % of {len(test.meant_B):,} sentences with pairs of nouns it never saw together are answered correctly"

    def draw(style: Style) -> bytes:
        return _draw_words(seen, style)

    return Explained(rows=tuple(rows), finding=finding, draw=draw)


def _draw_words(seen: Sequence[Tensor], style: Style) -> bytes:
    """For each sentence and layer the words twice, and a line from "it" to each word as thick as the attention, a colour a head."""
    layers = seen[0].shape[0]
    figure = new_paper(1.8 * len(seen) * layers, 4.4, style)
    panels = figure.subplots(1, len(seen) * layers, squeeze=False)[0]
    for place, axes in enumerate(panels):
        maps_HN = seen[place // layers][place % layers]
        _draw_sentence(axes, SENTENCES[place // layers].split(), maps_HN, style)
        entitle(axes, f"too {SENTENCES[place // layers].split()[-1]}: layer {place % layers}", style, size=9)
    figure.suptitle('What "it" attends to, a colour for each head', color=INK[style.theme], fontsize=10)
    return written(figure, style)


def _draw_sentence(axes: Any, sentence: Sequence[str], maps_HN: Tensor, style: Style) -> None:
    ink = INK[style.theme]
    for number, word in enumerate(sentence):
        asking = number == _IT
        axes.text(
            0.30,
            -number,
            word,
            ha="right",
            va="center",
            fontsize=8,
            color=ink,
            fontweight="bold" if asking else "normal",
            parse_math=False,
        )
        axes.text(0.70, -number, word, ha="left", va="center", fontsize=8, color=ink, parse_math=False)
    heads = len(maps_HN)
    for head, row_N in enumerate(maps_HN.tolist()):
        for number, weight in enumerate(row_N):
            end = -number + 0.5 * ((head + 0.5) / heads - 0.5)
            axes.plot(
                (0.32, 0.68), (-_IT, end), color=COLOURS[style.theme][head], linewidth=4 * weight, alpha=0.8, solid_capstyle="butt"
            )
    axes.set_xlim(0, 1)
    axes.set_ylim(-len(sentence) + 0.4, 0.6)
    axes.axis("off")
