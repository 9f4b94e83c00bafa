"""What of the order of words rephrasing leaves alone.

A sentence is its question words and tenses, a base, and phrases that begin with a preposition. Such a phrase may stand in
front as well as at the end (`in Python, how do I sort a list`); `the X of Y` is `the Y X`, as is `Y's X`; `between X and Y` has
no order; everything else keeps its own. Invariant: two arguments that change places change the form.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.semantic.guards.words import PAUSE, VERB, Token


def _is_pair(label: str, run: list[str]) -> bool:
    """`between X and Y`, with nothing more to tell of either."""
    return label == "between" and len(run) == 2


def forms_of(tokens: Iterable[Token]) -> list[str]:
    """Returns every sentence in its form, one after the other."""
    sentences = _Sentences()
    turns, placed = sentences.turns, sentences.word
    for kind, token in tokens:
        if kind == "words":
            placed(token)
        elif kind == "label":
            sentences.label(token)
        elif kind == "article":
            sentences.article()
        elif kind == "genitive":
            sentences.genitive()
        elif kind == "break":
            sentences.pause(token)
            turns = sentences.turns
        elif kind == "asks":
            turns.append(token)
            sentences.back()
        elif kind == "tense":
            turns.append(token)
        else:
            placed(token)
    return sentences.forms()


class _Sentences:
    """Brings sentence after sentence into its form."""

    __slots__ = ("_at", "_base", "_forms", "_in_front", "_phrases", "_run", "turns")

    def __init__(self) -> None:
        self._forms: list[list[str]] = []
        self._start()

    def _start(self) -> None:
        self.turns: list[str] = []
        """Question words and tenses: where they stand says nothing."""
        self._base: list[str] = []
        self._phrases: list[tuple[str, list[str]]] = []
        self._in_front = 0
        """So many phrases stand before the base."""
        self.back()

    def back(self) -> None:
        """The phrase is over, the base goes on."""
        self._run = self._base
        self._at: int | None = None
        """Where the owner of the last word goes, after an `of`."""

    def word(self, token: str) -> None:
        """A word that has its place."""
        if self._at is None:
            self._run.append(token)
        else:
            self._run.insert(self._at, token)
            self._at += 1

    def label(self, preposition: str) -> None:
        """A phrase begins."""
        self._in_front += not self._base
        self._run = []
        self._at = None
        self._phrases.append((preposition, self._run))

    def article(self) -> None:
        """After the noun of a phrase another begins, which belongs to the base."""
        if self._run and self._at is None and self._run is not self._base:
            self.back()

    def genitive(self) -> None:
        """What follows goes before the word that it belongs to."""
        if not self._run:
            self.label("of")
        elif self._at is None:
            self._at = len(self._run) - 1
        elif self._at:
            self._at -= 1

    def pause(self, mark: str) -> None:
        """A comma ends a phrase, a full stop the sentence; a verb that comes last goes to the front."""
        if mark == VERB:
            self._verb_first()
        if mark == PAUSE:
            self.back()
        else:
            self._end()

    def _verb_first(self) -> None:
        if self._at is None and self._run:
            self._base.insert(0, self._run.pop())

    def _end(self) -> None:
        if self._base or self._phrases or (self.turns and not self._forms):
            self._forms.append([self._form(), *sorted(self.turns)])
        elif self.turns:  # `I want to leave. How do I do that?` is one question
            self._forms[-1][1:] = sorted(self._forms[-1][1:] + self.turns)
        self._start()

    def forms(self) -> list[str]:
        """All of them, when there is no more."""
        self._end()
        return ["\1".join(form) for form in self._forms]

    def _form(self) -> str:
        phrases = self._phrases[self._in_front :] + self._phrases[: self._in_front]
        parts = ["\1".join(self._base)]
        parts += ["\1".join([label, *(sorted(run) if _is_pair(label, run) else run)]) for label, run in phrases]
        return "\2".join(parts)
