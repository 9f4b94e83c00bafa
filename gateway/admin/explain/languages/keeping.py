"""Tells who keeps the response of a request, and for how long."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.peek.peek import Peeked
from gateway.core.snapshot.snapshot.snapshot import Key, Model, PolicySnapshot
from gateway.core.types.words import Endpoint
from gateway.products.jobs.model.ids import RESPONSE, is_ours
from gateway.products.responses.rules.keeping import RESPONSES, keeping_of
from gateway.products.responses.rules.response_object.asked import AskedResponse, Keeping, keeps, read_asked

_NOT_HERE: Mapping[Keeping, str] = {
    "provider": "by the provider, as the request says",
    "asked": "by nobody: it does not ask for it (`store`), and no one account has them all",
    "gateway": "by nobody: it says so (`store`)",
    "off": "by nobody (responses.store)",
    "never": "by nobody (responses.store, or keeps_responses of the key)",
}


def explain_keeping(policy: PolicySnapshot, endpoint: Endpoint, key: Key, peeked: Peeked, model: Model) -> str | None:
    """Returns who keeps the response of a request; None: it makes none. Raises InvalidRequest."""
    if endpoint.name != RESPONSES:
        return None
    asked, keeping = read_asked(peeked.parsed or {}), keeping_of(policy, key, model, endpoint)
    if keeping is None:
        return "by the provider, as the request says: this gateway takes no jobs (jobs.store)"
    if asked.in_background:
        return _in_background(policy, model, asked, keeping)
    if keeping == "provider" and all(RESPONSES in target.gaps for target in model.plan):
        keeping = "asked"
    if not keeps(keeping, asked, goes_on_from_ours=is_ours(RESPONSE, asked.previous_id)):
        return _NOT_HERE[keeping]
    return f"here, for {model.jobs.keep_responses_s:g} s; the provider is asked to keep nothing"


def _in_background(policy: PolicySnapshot, model: Model, asked: AskedResponse, keeping: Keeping) -> str:
    if keeping == "never":
        return "by nobody: refused, as one in the background has to be kept (responses.store, or keeps_responses of the key)"
    if keeping == "provider" and not policy.jobs.settings.takes_files:
        return "by the provider, which runs it in the background (jobs is not set, and there is a passthrough)"
    keep_s = model.jobs.keep_responses_s if asked.stores else model.jobs.keep_background_s
    return f"here, where it runs in the background, and for {keep_s:g} s after its end"
