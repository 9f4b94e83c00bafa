"""What is worth a word at start about realtime sessions; they have no part of the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from gateway.core.config.product_sections import ConfigReading, SectionSpec
from gateway.core.config.providers import is_first
from gateway.core.snapshot import Model, PolicySnapshot, Provider
from gateway.products.realtime.rules import why_no_sessions


class RealtimeSection(SectionSpec):
    """Reads nothing, and tells which targets can have no sessions."""

    def provider_notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterator[str]:
        return realtime_notices(reading.providers, reading.built)


def realtime_notices(providers: Mapping[str, Provider], models: Mapping[str, Model]) -> Iterator[str]:
    """Yields the notices of what realtime sessions lack: of targets whose model is called so, as all with nothing else are."""
    asking = [
        (name, target)
        for name, model in models.items()
        for target in model.targets
        if "realtime" in (target.model or name) and is_first(target.provider)
    ]
    for name, target in asking:
        why = why_no_sessions(providers[target.provider])
        if why is not None:
            yield f"model {name}: {target.name} can have no realtime sessions: provider {target.provider} {why}"
    if asking and find_spec("websockets") is None:
        names = ", ".join(dict.fromkeys(name for name, _ in asking))
        yield f"model {names}: realtime sessions need a package that is not installed: pip install '.[realtime]'"
