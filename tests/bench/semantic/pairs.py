"""The data as pairs: paraphrases, which may share an answer, and near misses, which must not.

`questions.jsonl` has a question on each line: phrasings that mean the same, and others that look like them and do not.
`frames.jsonl` has sentences with a gap and what goes into it; every two fillings make a near miss. `traps.jsonl` has single
near misses, written against the guards. A line belongs to one half for good: the guards were made with `dev` in sight, and
are judged by `held-out`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

DATA = Path(__file__).parent / "data"
Sort = Literal["paraphrase", "manners", "near miss", "stranger"]
"""Of a pair: other words for the same; the same in other clothes; almost the same; two questions."""

_GREETINGS = {
    "en": ("Hello! {}", "{} Thanks!", "Please, {}"),
    "de": ("Hallo! {}", "{} Danke!", "Bitte, {}"),
    "fr": ("Bonjour ! {}", "{} Merci !", "{} SVP"),
    "es": ("¡Hola! {}", "{} ¡Gracias!", "Por favor, {}"),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts, and what they are to each other."""

    a: str
    b: str
    sort: Sort
    kind: str
    """What sets a near miss apart; else the language."""
    half: str


def load(*, strangers: bool = True) -> list[Pair]:
    """Every pair of the data."""
    questions = [pair for line in _lines("questions.jsonl") for pair in _of_question(line)]
    frames = [pair for line in _lines("frames.jsonl") for pair in _of_frame(line)]
    traps = [Pair(line["a"], line["b"], "near miss", line["kind"], line["split"]) for line in _lines("traps.jsonl")]
    return questions + frames + traps + (list(_strangers()) if strangers else [])


def _lines(name: str) -> Iterator[dict[str, Any]]:
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _of_question(line: dict[str, Any]) -> Iterator[Pair]:
    half, lang = line["split"], line["lang"]
    for a, b in combinations(line["same"], 2):
        yield Pair(a, b, "paraphrase", lang, half)
    for a in line["same"]:
        for b in _in_other_clothes(a, lang):
            yield Pair(a, b, "manners", lang, half)
    for a, other in product(line["same"], line["other"]):
        yield Pair(a, other["text"], "near miss", other["kind"], half)


def _in_other_clothes(text: str, lang: str) -> list[str]:
    """The same with a greeting, in small letters, without its last mark, with more space."""
    greeted = [greeting.format(text) for greeting in _GREETINGS.get(lang, ())]
    return [*greeted, text.lower(), text.rstrip("?.! "), text.replace(" ", "  ") + "\n"]


def _of_frame(line: dict[str, Any]) -> Iterator[Pair]:
    text, kind, half = line["text"], line["kind"], line["split"]
    if kind == "order":
        for a, b in line["fills"]:
            yield Pair(text.format(a=a, b=b), text.format(a=b, b=a), "near miss", kind, half)
        return
    for a, b in combinations(line["fills"], 2):
        yield Pair(text.format(a), text.format(b), "near miss", kind, half)


def _strangers() -> Iterator[Pair]:
    """Every two phrasings of different questions: what a busy partition is full of."""
    for one, other in combinations(_lines("questions.jsonl"), 2):
        if one["split"] == other["split"]:
            for a, b in product(one["same"], other["same"]):
                yield Pair(a, b, "stranger", "stranger", one["split"])
