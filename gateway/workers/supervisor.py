"""Starts the workers, keeps their number, passes operators' signals on to them, and adds up their metrics.

Workers are forked, at any time, from a process that has neither an event loop nor a thread: that is why the supervisor uses a
selector instead of asyncio, and imports the gateway without running any of it. A config that cannot be used, a taken port and
a worker that cannot start end everything with one message. Later, a worker that dies is replaced, after a delay that grows
with each death, and meanwhile another accepts from its listeners. A worker that hangs loses its listeners at once, and is
killed. When the supervisor itself dies, its workers read the end of their channels, stop listening, and drain.

In this order: which workers hang (`Heartbeat`), the sum of their metrics (`MetricsRounds`), the process (`Supervisor`). The
first two get the time as an argument, and the supervisor carries out what they decide.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from gateway.core.errors import ConfigError
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import Server
from gateway.settings import Settings
from gateway.workers.channel import (
    STACK_SIGNAL,
    Channel,
    ListenerPlace,
    Message,
    make_lock,
    places,
    require_shared,
)
from gateway.workers.worker import Fleet, WorkerSlot, announce_stop, counter, families_of, gauge, greet, run_worker

# --- Which workers hang ---


ASK_S = 1.0
SILENT_S = 5.0
"""Seconds without an answer after which a worker hangs."""
LAST_SILENT_S = 2.0
"""Seconds without an answer after which a worker hangs, once the grace of a stop is over: whoever still runs then is only
closing, and nothing waits for it.
"""
START_S = 60.0
"""Seconds after its fork by which a worker has to be ready, or it hangs; once the grace of a stop is over: none."""
STACKS_S = 0.5
"""Seconds that a worker which was given up has to write its stacks before it is killed."""
LATE_S = 2.0
"""Seconds of delay of its own ping after which the supervisor, and perhaps all workers, were suspended."""


Order = Literal["ask", "give_up", "kill"]
"""The action for a worker; it is killed in the round after the one that gives it up."""


class Heartbeat:
    """The pings of all workers, by number, in monotonic seconds; call `beat` once `due_at` has come.

    Each worker is pinged once a second, and one that stays silent is given up. A process that is stopped, or whose loop is
    blocked, still has its listener, and the kernel goes on giving it its part of the connections: only the supervisor can
    notice. Invariant: a worker is given up only for silence that lasted while the supervisor itself was awake; after the
    machine was suspended, all workers start with a clean slate.
    """

    def __init__(self) -> None:
        self.due_at = 0.0
        self._sent_at: dict[int, float] = {}
        """The time of each worker's unanswered ping."""
        self._given_up: set[int] = set()

    def note_answer(self, number: int) -> None:
        """Notes any message of a worker as its answer."""
        self._sent_at.pop(number, None)

    def silent_s(self, number: int, now: float) -> float:
        """Returns the seconds for which a worker's ping is unanswered."""
        return now - self._sent_at.get(number, now)

    def ended(self, number: int) -> None:
        """Forgets a worker whose process has ended, because its number goes to the next one."""
        self._sent_at.pop(number, None)
        self._given_up.discard(number)

    def beat(
        self,
        now: float,
        ready: Iterable[int],
        starting: Iterable[tuple[int, float]],
        grace_ends_at: float | None = None,
    ) -> list[tuple[int, Order]]:
        """Returns the actions that are due, for the ready workers and for the starting ones with their times of fork.

        `grace_ends_at`: the end of the grace for running calls; None while the gateway is not stopping.
        """
        if now - self.due_at > LATE_S:
            self._sent_at.clear()
        is_grace_over = grace_ends_at is not None and now >= grace_ends_at
        silent_s, start_s = (LAST_SILENT_S, 0.0) if is_grace_over else (SILENT_S, START_S)
        orders: list[tuple[int, Order]] = [(number, "kill") for number in sorted(self._given_up)]
        for number in ready:
            sent_at = self._sent_at.get(number)
            if sent_at is None:
                self._sent_at[number] = now
                orders.append((number, "ask"))
            elif now - sent_at >= silent_s:
                orders.append((number, "give_up"))
        late = (number for number, since in starting if now - since >= start_s and number not in self._given_up)
        orders += [(number, "give_up") for number in late]
        given_up = {number for number, order in orders if order == "give_up"}
        self._given_up |= given_up
        self.due_at = now + (STACKS_S if given_up else ASK_S)
        if grace_ends_at is not None and now < grace_ends_at:
            self.due_at = min(self.due_at, grace_ends_at)  # who is silent then is not waited for any longer
        return orders


# --- The sum of the workers' metrics ---


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
    """Collects the metrics of all workers whenever one of them is scraped, and sends it the sum; one round at a time.

    The supervisor does this, so that merging blocks no worker's loop, and because it outlives the workers and keeps the
    reports of dead ones. Messages go through the places.
    """

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

    def take_report(self, place: ListenerPlace, message: Message) -> None:
        """Takes a worker's report."""
        self._fleet.report(place.number, families_of(message))
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
            self._end_round(self._round)
        if self._round is None and self._scraped:
            self._begin_round(now)

    def _begin_round(self, now: float) -> None:
        ready = [place for place in self._places if place.is_ready]
        askers, self._scraped = self._scraped, []
        self._round = Round(askers, {place.number for place in ready}, set(), now + ANSWER_S)
        for place in ready:
            place.send({"do": "tell"})

    def _end_round(self, done: Round) -> None:
        self._round = None
        families = [
            *self._fleet.total(done.answered),
            gauge("gateway_workers", "Workers that there should be.", len(self._places)),
            gauge("gateway_workers_answered", "Workers that told their numbers in time.", len(done.answered)),
            counter("gateway_worker_restarts", "Workers that died and were replaced.", self.restarts),
        ]
        for place in done.askers:
            place.send({"do": "show", "families": families})


# --- The process ---


FIRST_DELAY_S, LAST_DELAY_S = 0.1, 30.0
"""Seconds until a dead worker is replaced: the first delay, doubled with each death up to the second."""
STEADY_S = 60.0
"""Seconds after which a worker has run long enough for its next death to count as the first."""
END_S = 10.0
"""Seconds that workers which answer have to end, beyond the grace, before they are killed."""
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

log = logging.getLogger("gateway.workers")


class WorkerFailed(Exception):
    """A worker could not start; the message has the reason, `code` is the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Supervisor:
    """The parent of `settings.workers` processes; `run` it in a process without any loop or thread."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], policy: PolicySnapshot) -> None:
        """Binds the ports of `policy`, and starts nothing. Raises ConfigError or OSError."""
        if not hasattr(os, "fork"):
            raise ConfigError([f"--workers: {sys.platform} cannot fork processes; run with --workers 1"])
        require_shared(settings, policy, settings.workers)
        self._settings = settings
        self._environ = environ
        self._policy = policy
        self._places = places(settings, policy)
        self._metrics = MetricsRounds(self._places)
        self._heartbeat = Heartbeat()
        self._has_started = False
        self._grace_ends_at: float | None = None
        """The time at which running calls have had their grace; None while the supervisor is not stopping."""
        self._has_announced_stop = False
        self._is_hurried = False
        self._code = 0
        self._log_lock = make_lock()
        self._selector = selectors.DefaultSelector()
        self._awoken, self._waker = socket.socketpair()

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT; returns the exit code. Raises WorkerFailed when a worker cannot start."""
        gc.collect()
        gc.freeze()  # what is here already stays in the pages that all share
        for end in (self._awoken, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, _do_nothing)
        self._selector.register(self._awoken, READ, lambda: self._obey(self._awoken.recv(4096)))
        try:
            for place in self._places:
                self._fill(place)
            while any(place.pid for place in self._places) or self._grace_ends_at is None:
                self._wait()
                self._keep_time()
        finally:
            self._kill_all()
        return self._code

    def _obey(self, signals: bytes) -> None:
        for number in signals:
            if number == signal.SIGCHLD:
                for place in self._places:
                    if place.pid:
                        pid, status = os.waitpid(place.pid, os.WNOHANG)
                        if pid:
                            self._empty(place, os.waitstatus_to_exitcode(status))
            elif number == signal.SIGHUP:
                self._send_all({"do": "reload"})
            elif self._grace_ends_at is None:
                self._stop()
            else:
                self._hurry()

    def _stop(self) -> None:
        self._end_grace_at(time.monotonic() + _grace_s(self._policy.server))
        self._send_all({"do": "drain"})

    def _wait_for_grace(self, server: Server) -> None:
        """Sets the time by which running calls have to end; `server` is a worker's, which has seen every reload."""
        if self._grace_ends_at is not None and not self._is_hurried:
            self._grace_ends_at = max(self._grace_ends_at, time.monotonic() + _grace_s(server))
        if not self._has_announced_stop:
            self._has_announced_stop = True
            announce_stop(server)

    def _hurry(self) -> None:
        self._is_hurried, self._code = True, 1
        self._end_grace_at(time.monotonic())
        self._send_all({"do": "hurry"})

    def _end_grace_at(self, ends_at: float) -> None:
        self._grace_ends_at = ends_at
        self._heartbeat.due_at = time.monotonic()  # who does not answer from now on is known at that end

    def _send_all(self, message: Mapping[str, Any]) -> None:
        for place in self._places:
            place.send(message)

    def _wait(self) -> None:
        """Waits for the next event or deadline, and handles it."""
        for place in self._places:
            if place.channel is not None:
                wanted = READ | WRITE if place.channel.has_unsent else READ
                self._selector.modify(place.channel.socket, wanted, partial(self._read_messages, place))
        due = [place.changed_at for place in self._places if not place.pid and self._grace_ends_at is None]
        ends_at = None if self._grace_ends_at is None else self._grace_ends_at + END_S
        due += [at for at in (self._metrics.due_at, ends_at, self._heartbeat.due_at) if at is not None]
        for key, _ in self._selector.select(max(min(due) - time.monotonic(), 0.0)):
            key.data()

    def _keep_time(self) -> None:
        now = time.monotonic()
        if self._grace_ends_at is not None and now >= self._grace_ends_at + END_S:
            log.error("workers that do not end are killed")
            self._code = 1
            self._kill_all()
        for place in self._places:
            if not place.pid and self._grace_ends_at is None and now >= place.changed_at:
                self._refill(place, now)
        if now >= self._heartbeat.due_at:
            self._look_for_hung(now)
        self._metrics.go_on(now)

    def _look_for_hung(self, now: float) -> None:
        """Pings the workers; one that hangs loses its listeners first, and is then killed."""
        by_number = {place.number: place for place in self._places if place.pid}
        ready = [number for number, place in by_number.items() if place.is_ready]
        starting = [(number, place.changed_at) for number, place in by_number.items() if not place.is_ready]
        for number, order in self._heartbeat.beat(now, ready, starting, self._grace_ends_at):
            place = by_number[number]
            if order == "ask":
                place.send({"do": "answer"})
            elif order == "give_up":
                silent_s = self._heartbeat.silent_s(number, now)
                what = f"has not answered for {silent_s:.0f} s" if place.is_ready else "does not become ready"
                log.error("worker %d %s: it is killed, and tells before that where it hangs if it can", number, what)
                place.is_ready = False
                self._deal()
                os.kill(place.pid, STACK_SIGNAL)
            else:
                os.kill(place.pid, signal.SIGKILL)

    def _fill(self, place: ListenerPlace) -> None:
        """Forks a worker into the place; raises OSError where the machine has no room for another process."""
        ours, theirs = socket.socketpair()
        place.channel = Channel(ours)
        slot = WorkerSlot(
            place.number, {one.number: one.listeners for one in self._places}, theirs, self._log_lock, self._policy
        )
        sys.stdout.flush()
        sys.stderr.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        try:
            place.pid = os.fork()
            if place.pid == 0:
                run_worker(self._settings, self._environ, slot, self._let_go)  # never returns
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        place.is_ready, place.changed_at, place.tended = False, time.monotonic(), []
        self._selector.register(ours, READ, partial(self._read_messages, place))

    def _refill(self, place: ListenerPlace, now: float) -> None:
        try:
            self._fill(place)
        except OSError as error:
            if place.channel is not None:
                place.channel.close()
                place.channel = None
            place.changed_at = now + LAST_DELAY_S
            log.warning("worker %d cannot be started yet: %s", place.number, error.strerror)

    def _let_go(self) -> None:
        """Closes the supervisor's descriptors in a worker: a channel only ends when no process holds its other end."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._awoken.close()
        self._waker.close()
        for place in self._places:
            if place.channel is not None:
                place.channel.close()

    def _read_messages(self, place: ListenerPlace) -> None:
        channel = place.channel
        if channel is None:
            return
        channel.flush()
        for message in channel.receive():
            self._heartbeat.note_answer(place.number)
            self._take(place, message)
        if channel.has_ended:
            self._selector.unregister(channel.socket)
            channel.close()
            place.channel = None

    def _take(self, place: ListenerPlace, message: Message) -> None:
        match message["say"]:
            case "ready":
                place.is_ready = True
                if self._has_started:
                    self._metrics.restarts += 1
                    log.info("worker %d is ready again", place.number)
                elif all(one.is_ready for one in self._places):
                    self._has_started = True
                    greet(self._policy, place.url, f", {len(self._places)} workers")
                self._deal()
            case "failed":
                self._refuse(place, message["text"], message["code"])
            case "draining":
                server = self._policy.server
                self._wait_for_grace(replace(server, grace_s=message["grace_s"], notice_s=message["notice_s"]))
            case "scraped":
                self._metrics.scraped(place)
            case "numbers":
                self._metrics.take_report(place, message)

    def _refuse(self, place: ListenerPlace, text: str, code: int) -> None:
        if not self._has_started:
            raise WorkerFailed(text, code)
        log.error("worker %d cannot start: %s", place.number, text)

    def _empty(self, place: ListenerPlace, code: int) -> None:
        """Handles the end of a place's worker: reads its last messages, keeps its totals, and schedules the next one."""
        self._read_messages(place)
        now = time.monotonic()
        place.pid, place.is_ready = 0, False
        self._metrics.died(place)
        self._heartbeat.ended(place.number)
        self._deal()
        how = f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        if self._grace_ends_at is not None:
            if code and not self._is_hurried:
                self._code = 1
                log.error("worker %d %s: its calls are lost", place.number, how)
            return
        if not self._has_started:
            raise WorkerFailed(f"worker {place.number} {how} before it was ready", 1)
        place.deaths = 0 if now - place.changed_at > STEADY_S else place.deaths
        delay_s = min(FIRST_DELAY_S * 2**place.deaths, LAST_DELAY_S)
        place.deaths += 1
        place.changed_at = now + delay_s
        log.error("worker %d %s: another takes its place in %g s", place.number, how, delay_s)

    def _deal(self) -> None:
        """Has some worker accept from every listener."""
        ready = [place for place in self._places if place.is_ready]
        absent = [place.number for place in self._places if not place.is_ready]
        if not self._has_started or not ready:
            return
        if len({id(place.listeners[0]) for place in self._places}) == 1:
            return  # one listener for all: no worker has to accept for another
        for at, place in enumerate(ready):
            tended = absent[at :: len(ready)]
            if tended != place.tended:
                place.tended = tended
                place.send({"do": "accept_for", "numbers": tended})

    def _kill_all(self) -> None:
        """Kills every worker that still runs."""
        for place in self._places:
            if place.pid:
                os.kill(place.pid, signal.SIGKILL)
                os.waitpid(place.pid, 0)
                place.pid = 0


def _do_nothing(_number: int, _frame: object) -> None:
    """Does nothing: the signal arrives through the wakeup descriptor."""


def _grace_s(server: Server) -> float:
    return server.notice_s + server.grace_s
