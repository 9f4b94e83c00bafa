"""Serves `/admin/dlq`: operators look at dead letters, have them run again, and throw them away.

Behind the admin key, and not on the hot path. No secret is in a letter; what was to be done is shown only when asked for.
"""

from __future__ import annotations

import logging
from math import isfinite, nan
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.http import MOST_BYTES, require_admin
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest
from gateway.core.intake import read_object, refuse_unknown
from gateway.core.snapshot import Policies
from gateway.drivers.durability import JobsOff
from gateway.products.jobs.dead_letters.redrive import Redrive, read_filter, read_redrive
from gateway.products.jobs.dead_letters.rules import DeadGroup, DeadLetter, LetterPage
from gateway.products.jobs.dead_letters.service import DeadLetterService, RedrivePlan
from gateway.products.jobs.model import Job, JobError
from gateway.products.routes import limit_of
from gateway.products.work import JobWork
from gateway.routes import json_response

EXAMPLE = '{"class": "server_error", "rate": 5, "dry_run": true}'
MOST_LISTED, USUALLY_LISTED = 100, 20
MOST_SHOWN = 1_048_576
"""Bytes of a payload that are shown."""
_FILTER = ("id", "group", "kind", "class", "model", "tenant", "older_than_s")
_REDRIVE_FIELDS = (*_FILTER, "rate", "to_model", "max", "dry_run")
_PURGE = (*_FILTER, "all")
log = logging.getLogger("gateway.admin")


def dead_letter_routes(policies: Policies, work: JobWork | None, clock: Clock) -> list[BaseRoute]:
    """Returns `/admin/dlq` and what is below it."""
    return DeadLetterRoutes(policies, None if work is None else work.dead, clock).routes()


class DeadLetterRoutes:
    """What each route does."""

    def __init__(self, policies: Policies, dead: DeadLetterService | None, clock: Clock) -> None:
        self._policies = policies
        self._dead = dead
        self._clock = clock

    def routes(self) -> list[BaseRoute]:
        """Returns the routes."""
        return [
            Route("/admin/dlq", self.show_all, methods=["GET"]),
            Route("/admin/dlq/replay", self.redrive, methods=["POST"]),
            Route("/admin/dlq/purge", self.purge, methods=["POST"]),
            Route("/admin/dlq/{id}", self.show, methods=["GET"]),
        ]

    async def show_all(self, request: Request) -> Response:
        """Shows the groups; with `group` the letters of one, the oldest first, behind the cursor `after`."""
        dead = self._service(request)
        group = request.query_params.get("group")
        if group is None:
            groups = await dead.groups()
            now = self._clock.wall()
            depth = sum(one.number for one in groups)
            return json_response({"depth": depth, "groups": [_shown_group(one, now) for one in groups]})
        limit = limit_of(request, USUALLY_LISTED, MOST_LISTED)
        page = await dead.page(LetterPage(group, _cursor(request), limit))
        last = page[-1] if len(page) == limit else None
        shown = [_shown(letter, self._clock.wall()) for letter in page]
        return json_response({"data": shown, "after": None if last is None else f"{last.at!r}:{last.id}"})

    async def show(self, request: Request) -> Response:
        """Shows a letter, with `payload` also what was to be done; or a redrive by its own id."""
        dead, id = self._service(request), request.path_params["id"]
        if id.startswith("job_"):
            return json_response(_shown_redrive(await dead.redrive_job(id[:64])))
        letter = await dead.find(id[:64])
        shown = _shown(letter, self._clock.wall())
        shown["trail"] = [_shown_error(error) for error in letter.trail]
        if request.query_params.get("payload") in ("1", "true", "yes"):
            payload = await dead.payload(letter)
            shown["payload"] = None if payload is None else payload[:MOST_SHOWN].decode(errors="replace")
        return json_response(shown)

    async def redrive(self, request: Request) -> Response:
        """Begins a redrive, or says what it would do."""
        dead = self._service(request)
        fields = await read_object(request, self._policies.current.server, MOST_BYTES, EXAMPLE)
        refuse_unknown(fields, _REDRIVE_FIELDS)
        spec = read_redrive(fields, self._clock.wall())
        if spec.to_model and self._policies.current.find_model(spec.to_model) is None:
            raise InvalidRequest("The field 'to_model' must be a model of the config.", param="to_model")
        if fields.get("dry_run", False) is not False:
            return json_response({"dry_run": True, **self._shown_plan(await dead.plan(spec), spec)})
        job = await dead.redrive(spec)
        log.warning("admin: dead letters are replayed by %s, %g a second", job.id, spec.rate)
        return json_response(_shown_redrive(job))

    async def purge(self, request: Request) -> Response:
        """Throws letters away."""
        dead = self._service(request)
        fields = await read_object(request, self._policies.current.server, MOST_BYTES, '{"group": "…"}')
        refuse_unknown(fields, _PURGE)
        if not any(fields.get(name) is not None for name in _FILTER) and fields.get("all") is not True:
            raise InvalidRequest("Say which letters: a field such as 'group', or 'all': true for every one.")
        purged = await dead.purge(read_filter(fields, self._clock.wall()))
        log.warning("admin: %d dead letters were purged", purged)
        return json_response({"purged": purged})

    def _service(self, request: Request) -> DeadLetterService:
        require_admin(self._policies, request)
        if self._dead is None:
            raise JobsOff("This gateway takes no jobs; its operator names a file with `jobs.store`.")
        return self._dead

    def _limit_of(self, name: str) -> float | None:
        """Returns how many requests a second a model's limits let through; None: one of its targets has none."""
        model = self._policies.current.find_model(name)
        each = [] if model is None else [target.limits.requests_per_min for target in model.targets]
        known = [rate for rate in each if rate is not None]
        return sum(known) / 60 if known and len(known) == len(each) else None

    def _shown_plan(self, plan: RedrivePlan, spec: Redrive) -> dict[str, Any]:
        seconds, models, usd = plan.letters / spec.rate, [], 0.0
        is_priced = False
        for name, found in sorted(plan.models.items()):
            scale = found.letters / found.priced if found.priced else 0.0
            limit = self._limit_of(name) if name else None
            if limit:
                seconds = max(seconds, found.letters / limit)
            if found.usd is not None:
                usd, is_priced = usd + found.usd * scale, True
            models.append(
                {
                    "model": name or None,
                    "letters": found.letters,
                    "input_tokens": round(found.input_tokens * scale),
                    "usd": None if found.usd is None else round(found.usd * scale, 6),
                    "limit_per_s": limit,
                }
            )
        return {
            "letters": plan.letters,
            "not_replayable": plan.gone,
            "models": models,
            "usd": round(usd, 6) if is_priced else None,
            "seconds": round(seconds, 1),
        }


def _cursor(request: Request) -> tuple[float, str]:
    text = request.query_params.get("after")
    if text is None:
        return -1.0, ""
    at, _, letter_id = text.partition(":")
    try:
        found = float(at)
    except ValueError:
        found = nan
    if not isfinite(found):
        raise InvalidRequest("The parameter 'after' must be the 'after' of the page before.", param="after")
    return found, letter_id


def _shown_group(group: DeadGroup, now: float) -> dict[str, Any]:
    return {
        "group": group.id,
        "kind": str(group.kind),
        "class": group.error_class,
        "model": group.model or None,
        "message": group.template,
        "letters": group.number,
        "bytes": group.bytes,
        "oldest_at": int(group.oldest_at),
        "newest_at": int(group.newest_at),
        "oldest_seconds": round(max(0.0, now - group.oldest_at), 1),
        "samples": [_shown(letter, now) for letter in group.samples],
    }


def _shown(letter: DeadLetter, now: float) -> dict[str, Any]:
    return {
        "id": letter.id,
        "object": "dead_letter",
        "kind": str(letter.kind),
        "group": letter.group,
        "class": letter.error_class,
        "job": letter.job_id,
        "line": None if letter.line is None else letter.line + 1,
        "tenant": letter.tenant or None,
        "model": letter.model or None,
        "last_error": _shown_error(letter.error),
        "attempts": letter.attempts,
        "cost_usd": round(letter.cost_usd, 8),
        "first_failed_at": int(letter.first_failed_at),
        "last_failed_at": int(letter.error.at),
        "dead_at": int(letter.at),
        "age_seconds": round(max(0.0, now - letter.at), 1),
        "bytes": letter.bytes,
        "state": str(letter.state),
        "is_replayable": letter.is_replayable,
        "replays": letter.replays,
        "replay_job": letter.replay_job or None,
    }


def _shown_error(error: JobError) -> dict[str, Any]:
    return {
        "class": error.error_class,
        "message": error.message,
        "at": int(error.at),
        "target": error.target or None,
        "phase": error.phase or None,
        "cost_usd": round(error.cost_usd, 8),
    }


def _shown_redrive(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "object": "replay",
        "status": str(job.state),
        "replayed": job.tally.total,
        "skipped": job.marks.get("skipped", 0),
        "created_at": int(job.created_at),
        "finished_at": None if job.ended_at is None else int(job.ended_at),
        "asked": job.about["replay"],
    }
