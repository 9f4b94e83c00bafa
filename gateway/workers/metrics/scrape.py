"""Collects the metrics of all workers whenever one of them is scraped, and sends it the sum.

The supervisor does this, so that merging blocks no worker's loop, and because it outlives the workers and keeps the reports
of dead ones. Time comes in as an argument, messages through the places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.workers.channel.channel import Message
from gateway.workers.channel.listeners import ListenerPlace
from gateway.workers.metrics.merge_metrics import Fleet, counter, families_of, gauge

ANSWER_S = 0.25
"""Seconds that a worker has to report its metrics for a scrape."""


@dataclass(slots=True)
class Round:
    """One collection of all workers' metrics, for the workers that were scraped."""

    askers: list[ListenerPlace]
    missing: set[int]
    answered: set[int]
    ends_at: float


class MetricsRounds:
    """Runs the rounds one at a time, and keeps all reports."""

    def __init__(self, places: Sequence[ListenerPlace]) -> None:
        self._places = places
        self._fleet = Fleet()
        self._scraped: list[ListenerPlace] = []
        self._round: Round | None = None
        self.restarts = 0
        """The number of workers that died and were replaced."""

    @property
    def due_at(self) -> float | None:
        """Returns the time by which `go_on` has to be called; None: no round is running."""
        return self._round.ends_at if self._round else None

    def scraped(self, place: ListenerPlace) -> None:
        """Notes that a worker was scraped; it gets the sum of a round that begins after this."""
        self._scraped.append(place)

    def told(self, place: ListenerPlace, message: Message) -> None:
        """Takes a worker's report."""
        self._fleet.tell(place.number, families_of(message))
        if self._round is not None and place.number in self._round.missing:
            self._round.missing.discard(place.number)
            self._round.answered.add(place.number)

    def died(self, place: ListenerPlace) -> None:
        """Keeps the totals of a dead worker, and no longer waits for its report."""
        self._fleet.depart(place.number)
        self._scraped = [one for one in self._scraped if one is not place]
        if self._round is not None:
            self._round.missing.discard(place.number)
            self._round.answered.discard(place.number)

    def go_on(self, now: float) -> None:
        """Ends a round that is complete or late, and begins the next where a worker was scraped."""
        if self._round is not None and (not self._round.missing or now >= self._round.ends_at):
            self._answer(self._round)
        if self._round is None and self._scraped:
            self._ask(now)

    def _ask(self, now: float) -> None:
        ready = [place for place in self._places if place.is_ready]
        askers, self._scraped = self._scraped, []
        self._round = Round(askers, {place.number for place in ready}, set(), now + ANSWER_S)
        for place in ready:
            place.send({"do": "tell"})

    def _answer(self, done: Round) -> None:
        self._round = None
        families = [
            *self._fleet.total(done.answered),
            gauge("gateway_workers", "Workers that there should be.", len(self._places)),
            gauge("gateway_workers_answered", "Workers that told their numbers in time.", len(done.answered)),
            counter("gateway_worker_restarts", "Workers that died and were replaced.", self.restarts),
        ]
        for place in done.askers:
            place.send({"do": "show", "families": families})
