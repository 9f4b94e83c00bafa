"""`gateway webhooks`: whom a running gateway tells of the ends of jobs, and what to do where that goes wrong."""

from __future__ import annotations

import argparse
import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gateway.cli.main import FAILED, OK, UNUSABLE, fail
from gateway.cli.operate import AdminClient, call_admin, lay_out, moment, safe

SECRET_BYTES = 32
HEADINGS = ("webhook", "state", "under way", "waiting", "later", "last", "where")


def list_webhooks(options: argparse.Namespace) -> int:
    """Shows endpoints, how they are, and what waits for them."""
    return call_admin(options, lambda client: client.get("webhooks"), _table)


def redeliver(options: argparse.Namespace) -> int:
    """Makes deliveries again: one by an id, or those that have failed lately."""
    if (options.id is None) == (options.since is None):
        return fail(
            "redeliver what? an ID (job_gw…, batch_gw…, evt_gw…, msg_gw…), or --since 24h for all that failed", UNUSABLE
        )
    what = {"id": options.id} if options.id is not None else {"since_s": options.since}
    return call_admin(options, lambda client: _post(client, options.name, "redeliver", what), _redelivered)


def switch(options: argparse.Namespace) -> int:
    """Disables or enables an endpoint."""
    return call_admin(
        options,
        lambda client: _post(client, options.name, options.action),
        lambda told: f"{safe(told['name'])} is {safe(told['state'])}",
    )


def test(options: argparse.Namespace) -> int:
    """Sends a signed event `test`; fails unless it was taken."""
    results: list[str] = []

    def request(client: AdminClient) -> dict[str, Any]:
        answer = _post(client, options.name, "test")
        results.append(answer["result"])
        return answer

    code = call_admin(options, request, _tested)
    return code if code != OK or results[0] == "ok" else FAILED


def rotate(options: argparse.Namespace) -> int:
    """Prints a new secret, and how to bring it in. Nothing is sent, and nothing is changed."""
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    if options.json:
        print(json.dumps({"secret": secret}))
        return OK
    place = f"webhooks: {{{options.name}: {{…, " if options.name else ""
    end = "}}" if options.name else ""
    print(f"""{secret}

1. Keep it as a variable, such as HOOK_NEW, and put it first; both sign from the next reload on:
     {place}secrets: ["${{HOOK_NEW}}", "${{HOOK_OLD}}"]{end}
2. Give it to the receivers, which then verify with it.
3. Take the old one away.""")
    return OK


def _post(client: AdminClient, name: str, action: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return client.post(f"webhooks/{quote(name, safe='')}/{action}", body or {})


def _table(answer: Mapping[str, Any]) -> str:
    rows = [_row(name, row, row["origin"]) for name, row in answer["webhooks"].items()]
    requests = answer["requests"]
    resting = requests["resting_hosts"]
    if requests["state"] != "off" or any(requests["waiting"].values()):
        rows.append(_row("(requests)", requests, f"{resting} hosts rest" if resting else "URLs of requests"))
    return lay_out([HEADINGS, *rows], right=(2, 3, 4)) if rows else "no webhooks"


def _row(name: str, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    rests = f" ({row['rests_s']:g} s)" if row.get("rests_s") else ""
    waiting, last = row["waiting"], row["last"]
    latest = f"{last[0]['result']}, {moment(last[0]['at'])}" if last else "-"
    return (
        safe(name),
        safe(row["state"]) + rests,
        str(row["in_flight"]),
        str(waiting["ready"]),
        str(waiting["later"]),
        safe(latest),
        safe(where),
    )


def _redelivered(answer: Mapping[str, Any]) -> str:
    text = f"{answer['redelivered']:,} redelivered to {safe(answer['name'])}"
    text += f", {answer['under_way']:,} were under way already" if answer["under_way"] else ""
    return f"{text}; there are more: ask again" if answer["more"] else text


def _tested(answer: Mapping[str, Any]) -> str:
    outcome = (
        f"answered {answer['status']}" if answer["status"] is not None else f"did not answer: {safe(answer['why'])}"
    )
    return f"{safe(answer['name'])} {outcome} ({safe(answer['result'])}, {answer['took_ms']:g} ms)"
