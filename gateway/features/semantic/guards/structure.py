"""Reduces the order of words to what rephrasing leaves alone.

A sentence is its question words and tenses, a base, and phrases that begin with a preposition. Such a phrase may stand in
front as well as at the end (`in Python, how do I sort a list`); `the X of Y` is `the Y X`, as is `Y's X`; `between X and Y` has
no order; everything else keeps its own. Invariant: two arguments that change places change the form.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.features.semantic.guards.words import PAUSE, VERB, Token


def _is_pair(label: str, run: list[str]) -> bool:
    """Returns whether the phrase is `between X and Y` with one word each, so that their order means nothing."""
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
        """The question words and tenses of the sentence, whose places mean nothing."""
        self._base: list[str] = []
        self._phrases: list[tuple[str, list[str]]] = []
        self._in_front = 0
        """The number of phrases before the base."""
        self.back()

    def back(self) -> None:
        """Ends the phrase: the next words belong to the base."""
        self._run = self._base
        self._at: int | None = None
        """The place of the next word in the run, where a genitive puts it before its head; None: at the end."""

    def word(self, token: str) -> None:
        """Adds a word whose place matters."""
        if self._at is None:
            self._run.append(token)
        else:
            self._run.insert(self._at, token)
            self._at += 1

    def label(self, preposition: str) -> None:
        """Begins a phrase."""
        self._in_front += not self._base
        self._run = []
        self._at = None
        self._phrases.append((preposition, self._run))

    def article(self) -> None:
        """Ends a phrase that has its noun, because an article begins another noun, which belongs to the base."""
        if self._run and self._at is None and self._run is not self._base:
            self.back()

    def genitive(self) -> None:
        """Puts the words that follow an `of` before the word that they belong to."""
        if not self._run:
            self.label("of")
        elif self._at is None:
            self._at = len(self._run) - 1
        elif self._at:
            self._at -= 1

    def pause(self, mark: str) -> None:
        """Ends a phrase at a comma and the sentence at a full stop; a verb that comes last goes to the front."""
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
        """Ends the last sentence, and returns the forms of all."""
        self._end()
        return ["\1".join(form) for form in self._forms]

    def _form(self) -> str:
        phrases = self._phrases[self._in_front :] + self._phrases[: self._in_front]
        parts = ["\1".join(self._base)]
        parts += ["\1".join([label, *(sorted(run) if _is_pair(label, run) else run)]) for label, run in phrases]
        return "\2".join(parts)
