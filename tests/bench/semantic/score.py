"""Every pair judged once, and counted at each threshold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gateway.features.semantic.guards import facts_of, objection
from gateway.features.semantic.local_model import LocalEmbedder
from tests.bench.semantic.pairs import Pair, Sort

THRESHOLDS = tuple(round(0.70 + 0.01 * step, 2) for step in range(30))
LEXICAL = frozenset(("words", "order"))
"""The strict guards; without them the others leave a substituted word to the embedding."""
RULES = ("no guards", "facts only", "guards")


@dataclass(frozen=True, slots=True)
class Judged:
    """A pair, its cosine and the guard that objects."""

    pair: Pair
    cosine: float
    objection: str | None

    def passes(self, rule: str) -> bool:
        """Whether the guards, none of them, or all but the lexical ones let it through."""
        objects = self.objection is not None and not (rule == "facts only" and self.objection in LEXICAL)
        return rule == "no guards" or not objects


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; rates are shares of the pairs of their sort."""

    half: str
    rule: str
    threshold: float
    recall: float
    recall_manners: float
    near_misses: int
    false_hits: int
    false_rate: float
    stranger_hits: int
    precision: float
    """Of paraphrases and near misses taken together, as many as there are."""


def judge(pairs: Sequence[Pair], model: Path) -> list[Judged]:
    """Embed every text once and compare."""
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)})
    at = {text: place for place, text in enumerate(texts)}
    embedder = LocalEmbedder(model)
    vectors = np.array([embedder.embed_now(text) for text in texts], dtype=np.float32)
    facts = [facts_of(text) for text in texts]
    places = np.array([(at[pair.a], at[pair.b]) for pair in pairs])
    cosines = np.einsum("ij,ij->i", vectors[places[:, 0]], vectors[places[:, 1]])
    return [
        Judged(pair, float(cosine), objection(facts[a], facts[b]))
        for pair, cosine, (a, b) in zip(pairs, cosines, places, strict=True)
    ]


def table(judged: Sequence[Judged], half: str) -> list[Row]:
    """A row for each rule and threshold."""
    ours = [one for one in judged if one.pair.half == half]
    return [_row(ours, half, rule, threshold) for rule in RULES for threshold in THRESHOLDS]


def _row(judged: Sequence[Judged], half: str, rule: str, threshold: float) -> Row:
    hits = [one for one in judged if one.cosine >= threshold and one.passes(rule)]
    true, false = _count(hits, "paraphrase"), _count(hits, "near miss")
    near_misses = _count(judged, "near miss")
    return Row(
        half,
        rule,
        threshold,
        recall=true / _count(judged, "paraphrase"),
        recall_manners=_count(hits, "manners") / _count(judged, "manners"),
        near_misses=near_misses,
        false_hits=false,
        false_rate=false / near_misses,
        stranger_hits=_count(hits, "stranger"),
        precision=true / (true + false) if true + false else 1.0,
    )


def _count(judged: Iterable[Judged], sort: Sort) -> int:
    return sum(one.pair.sort == sort for one in judged)


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For a file."""
    return [asdict(row) for row in rows]
