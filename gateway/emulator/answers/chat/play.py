"""Acts out an answer: at its pace, whole, or broken in the way its fault says.

It must not know why a fault was picked (`faults.py`). Invariant: without a fault every answer ends properly; with one,
the call ends exactly as `faults.FAULTS` describes it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from gateway.emulator.answers.reply import EmulatedReply, Headers, Stream, json_reply
from gateway.emulator.app.call.call import EmulatedCall
from gateway.emulator.config.config.faults import Fault
from gateway.emulator.dialects.dialects.dialects import EmulatedAccount
from gateway.emulator.generate.answer import blocked
from gateway.emulator.problems.problems import CDN_PAGE, overloaded_503
from gateway.emulator.problems.refusing import fault_problem, overload
from gateway.emulator.problems.shapes import LANGUAGES

_FINISH_REASON = re.compile(rb'"finish_reason":"\w+"')
_YIELD_EVERY = 64  # frames sent at once before others get their turn
_PIECES = 16  # of a whole answer that drips
_LONGEST_GAP_S = 3600.0
_BEFORE_LIMITS = frozenset({"e401", "e403", "e404"})  # refused before anything is counted: no limit headers
_DRIPS = frozenset({"drip", "fade"})
_ERRORS_IN_200 = frozenset({"in_band_error", "opening_error", "raw_error"})
_UNFRAMED = frozenset({"truncated", "wrong_length"})


@dataclass(frozen=True, slots=True)
class EmulatedPace:
    """Seconds until the first token and between the next."""

    ttft_s: float
    per_token_s: float


def refusal_of(fault: Fault, account: EmulatedAccount, call: EmulatedCall, now: float) -> EmulatedReply | None:
    """Returns the whole reply that `fault` consists of, or None for the faults that break a good answer."""
    dialect = call.dialect
    match fault.kind:
        case "rate_limit" | "rate_limit_bare":
            refusal = account.throttle(fault.seconds or 0.0, now, is_bare=fault.kind == "rate_limit_bare")
            return refusal.reply(dialect, call.request_id)
        case "html502":
            return EmulatedReply(status=502, body=CDN_PAGE, content_type=b"text/html", is_foreign=True)
        case "empty_200":
            return EmulatedReply(body=b"")
        case "error_in_200":
            return EmulatedReply(body=_overload(call, dialect))
        case "content_filter" if dialect == "generate":  # Google answers with 200, and with nothing but the reason
            return json_reply(blocked(0))
    problem = fault_problem(fault.kind, dialect, call.path)
    if problem is None:
        return None
    is_bare = fault.kind in _BEFORE_LIMITS
    return problem.reply(dialect, _retry_after(fault), is_bare=is_bare, request_id=call.request_id)


async def perform(
    call: EmulatedCall,
    answer: EmulatedReply | Stream,
    fault: Fault | None,
    pace: EmulatedPace,
    account: EmulatedAccount,
) -> None:
    """Plays `answer` at `pace`, as `fault` bends it."""
    if fault is not None and fault.kind == "silence":
        await call.hang()
    if fault is not None and fault.kind == "reset" and not fault.after_chunks:
        await call.reset()
        return
    wait_s = pace.ttft_s
    if fault is not None and fault.kind == "slow_first_token":
        wait_s += fault.seconds or 0.0
    if isinstance(answer, EmulatedReply):
        wait_s += max(0, answer.tokens - 1) * pace.per_token_s
    if wait_s:
        await call.sleep(wait_s)
    if fault is not None and fault.kind in _UNFRAMED:
        await _misframe(call, _whole(answer), fault.kind)
    elif isinstance(answer, Stream):
        await _play_stream(call, answer, fault, pace.per_token_s, account)
    else:
        await _play_reply(call, answer, fault, account)


async def _play_reply(call: EmulatedCall, reply: EmulatedReply, fault: Fault | None, account: EmulatedAccount) -> None:
    account.emitted(reply.tokens, call.now())
    half = len(reply.body) // 2
    match fault.kind if fault else None:
        case "cut" | "stall" | "reset" as kind:
            await call.start(reply, len(reply.body))
            await call.write(reply.body[:half])
            await _break_off(call, kind)
        case "malformed":
            await call.reply(replace(reply, body=reply.body[:half]))
        case kind if kind in _ERRORS_IN_200:
            await call.reply(EmulatedReply(body=_overload(call, "openai")))
        case kind if fault is not None and kind in _DRIPS:
            await _drip_reply(call, reply, fault)
        case "refusal":
            await call.reply(replace(reply, body=_filtered(reply.body)))
        case _:
            await call.reply(reply)


async def _play_stream(
    call: EmulatedCall, stream: Stream, fault: Fault | None, per_token_s: float, account: EmulatedAccount
) -> None:
    kind, chunks = (fault.kind, fault.after_chunks) if fault else ("", None)
    left = iter(() if kind == "opening_error" else stream.frames)
    frames = _with_broken_frame(stream, chunks) if kind == "malformed" else islice(left, chunks)
    call.watch()
    await call.start(EmulatedReply(body=b"", content_type=stream.content_type), None)
    if stream.lead and chunks != 0:
        await call.write(stream.lead)
    await _play_frames(call, frames, per_token_s, account.emitted)
    match kind:
        case "cut" | "stall" | "reset":
            await _break_off(call, kind)
        case "in_band_error" | "opening_error":
            await call.finish(stream.error_frame(_overload(call, "openai")))
        case "raw_error":
            await call.finish(_overload(call, "openai"))
        case kind if fault is not None and kind in _DRIPS:
            await _drip(call, left, fault, account.emitted)
            await call.finish(stream.tail)
        case "no_done":
            await call.finish()
        case "refusal":
            await call.finish(_filtered(stream.tail))
        case _:
            await call.finish(stream.tail)


async def _play_frames(
    call: EmulatedCall, frames: Iterable[bytes], per_token_s: float, emitted: Callable[[int, float], None]
) -> None:
    # Each frame has its own due time from the first on: late wake-ups do not add up.
    due = call.now()
    for number, each in enumerate(frames):
        due += per_token_s if number else 0.0
        ahead_s = due - call.now() if per_token_s else 0.0
        if ahead_s > 0:
            await call.sleep(ahead_s)
        elif number % _YIELD_EVERY == _YIELD_EVERY - 1:
            await asyncio.sleep(0)
        await call.write(each)
        emitted(1, due)


async def _drip(
    call: EmulatedCall, pieces: Iterable[bytes], fault: Fault, emitted: Callable[[int, float], None]
) -> None:
    gap_s = fault.seconds or 0.0
    for each in pieces:
        await call.sleep(gap_s)
        await call.write(each)
        emitted(1, call.now())
        if fault.kind == "fade":
            gap_s = min(2 * gap_s, _LONGEST_GAP_S)


async def _drip_reply(call: EmulatedCall, reply: EmulatedReply, fault: Fault) -> None:
    size = -(-len(reply.body) // _PIECES)
    pieces = [reply.body[start : start + size] for start in range(0, len(reply.body), size)]
    at_once = fault.after_chunks or 0
    await call.start(reply, len(reply.body))
    await call.write(b"".join(pieces[:at_once]))
    await _drip(call, pieces[at_once:], fault, lambda _count, _now: None)
    await call.finish()


async def _break_off(call: EmulatedCall, kind: str) -> None:
    match kind:
        case "cut":
            await call.close()
        case "reset":
            await call.reset()
        case _:
            await call.hang()


async def _misframe(call: EmulatedCall, reply: EmulatedReply, kind: str) -> None:
    if kind == "truncated":
        await call.start(reply, len(reply.body))
        await call.write(reply.body[: len(reply.body) // 2])
        await call.close()
        return
    told = max(1, len(reply.body) - 16)
    await call.start(reply, told)
    await call.finish(reply.body[:told])
    call.smuggle(reply.body[told:])


def _whole(answer: EmulatedReply | Stream) -> EmulatedReply:
    if isinstance(answer, EmulatedReply):
        return answer
    return EmulatedReply(body=answer.lead + b"".join(answer.frames) + answer.tail, content_type=answer.content_type)


def _with_broken_frame(stream: Stream, chunks: int | None) -> Iterator[bytes]:
    frames = iter(stream.frames)
    late_lead = () if chunks else (stream.lead,)
    return chain(islice(frames, chunks), (stream.broken,), late_lead, frames)


def _overload(call: EmulatedCall, dialect: str) -> bytes:
    """Returns the JSON of the error that a stream ends with: in the form of the call, or else in that of `dialect`."""
    if call.dialect in LANGUAGES:
        return overload(call.dialect).render(call.dialect, call.request_id)
    return overloaded_503(dialect).render(dialect)


def _filtered(body: bytes) -> bytes:
    return _FINISH_REASON.sub(b'"finish_reason":"content_filter"', body)


def _retry_after(fault: Fault) -> Headers:
    return ((b"retry-after", f"{fault.seconds:.15g}".encode()),) if fault.seconds is not None else ()
