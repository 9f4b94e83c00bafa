"""Reads `keeps_responses` of a key."""

from __future__ import annotations

from typing import Any, ClassVar

from gateway.core.config.fields import Flag
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, Settings, placed_after
from gateway.core.config.schema import KeyEntry
from gateway.core.config.source import Path
from gateway.core.snapshot import Key
from gateway.products.responses.rules import KEEPS_RESPONSES


class ResponsesSection(SectionSpec):
    """`keeps_responses` of a key."""

    of_key: ClassVar[EntryField[bool]] = EntryField("keeps_responses", Flag, True, after="accepts_202")
    key_fields = (of_key,)

    def read_key(self, reading: ConfigReading, path: Path, entry: KeyEntry) -> Settings:
        return {KEEPS_RESPONSES: self.of_key.of(entry)}

    def describe_key(self, key: Key, shown: dict[str, Any]) -> dict[str, Any]:
        return placed_after(["allow_overspend"], shown, keeps_responses=KEEPS_RESPONSES.of(key))
