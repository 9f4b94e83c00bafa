"""Reads `keeps_responses` of a key, and explains who keeps the response of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from gateway.core.config.fields import Flag
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, Settings, placed_after
from gateway.core.config.schema import KeyEntry
from gateway.core.config.source import Path
from gateway.core.snapshot import ExplainedRequest, Key
from gateway.products.jobs.model import RESPONSE, is_ours
from gateway.products.jobs.rules import JOB_RULES, JOBS
from gateway.products.responses.keeping import RESPONSES, keeping_of
from gateway.products.responses.rules import KEEPS_RESPONSES, Keeping, keeps, read_response_options


class ResponsesSection(SectionSpec):
    """`keeps_responses` of a key."""

    of_key: ClassVar[EntryField[bool]] = EntryField("keeps_responses", Flag, True, after="accepts_202")
    key_fields = (of_key,)
    explain_order = 4

    def read_key(self, reading: ConfigReading, path: Path, entry: KeyEntry) -> Settings:
        return {KEEPS_RESPONSES: self.of_key.of(entry)}

    def describe_key(self, key: Key, shown: dict[str, Any]) -> dict[str, Any]:
        return placed_after(["allow_overspend"], shown, keeps_responses=KEEPS_RESPONSES.of(key))

    def explain(self, request: ExplainedRequest) -> Iterator[str]:
        """Yields who keeps the response of a request, and for how long. Raises InvalidRequest."""
        kept = _explained(request)
        if kept is not None:
            yield f"response  kept {kept}"


_NOT_HERE: Final[Mapping[Keeping, str]] = {
    "provider": "by the provider, as the request says",
    "asked": "by nobody: it does not ask for it (`store`), and no one account has them all",
    "gateway": "by nobody: it says so (`store`)",
    "off": "by nobody (responses.store)",
    "never": "by nobody (responses.store, or keeps_responses of the key)",
}


def _explained(request: ExplainedRequest) -> str | None:
    """Returns who keeps the response of a request; None: it makes none. Raises InvalidRequest."""
    policy, model = request.policy, request.model
    if request.endpoint.name != RESPONSES:
        return None
    options = read_response_options(request.parsed or {})
    keeping = keeping_of(policy, request.key, model, request.endpoint)
    if keeping is None:
        return "by the provider, as the request says: this gateway takes no jobs (jobs.store)"
    if options.in_background:
        if keeping == "never":
            kept = "responses.store, or keeps_responses of the key"
            return f"by nobody: refused, as one in the background has to be kept ({kept})"
        if keeping == "provider" and not JOBS.of(policy).settings.takes_files:
            return "by the provider, which runs it in the background (jobs is not set, and there is a passthrough)"
        keep_s = JOB_RULES.of(model).keep_responses_s if options.stores else JOB_RULES.of(model).keep_background_s
        return f"here, where it runs in the background, and for {keep_s:g} s after its end"
    if keeping == "provider" and all(RESPONSES in target.gaps for target in model.plan):
        keeping = "asked"
    if not keeps(keeping, options, goes_on_from_ours=is_ours(RESPONSE, options.previous_id)):
        return _NOT_HERE[keeping]
    return f"here, for {JOB_RULES.of(model).keep_responses_s:g} s; the provider is asked to keep nothing"
