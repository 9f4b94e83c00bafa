"""Reads `objects`: the objects at providers that all tenants share.

Owners matter only where several tenants share an account at a provider; elsewhere there are no rules and no records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from gateway.core.config.fields import Names
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, placed_after
from gateway.core.config.schema import Entry, check
from gateway.core.config.source import Document
from gateway.core.snapshot import READS_FORMS, Key, PolicySnapshot, Provider
from gateway.features.ownership.objects import scope_of
from gateway.features.ownership.rules import OBJECTS, ObjectRules

SHARED = "shared"


class ObjectsEntry(Entry):
    """The shared objects at providers; all others belong to the tenant that made them."""

    shared: Names | None = None


class ObjectsSection(SectionSpec):
    """The section `objects`."""

    of_file: ClassVar[EntryField[Any]] = EntryField("objects", Any, None, after="passthrough")
    file_fields = (of_file,)

    def read_sections(self, reading: ConfigReading) -> None:
        given = self.of_file.of(reading.config)
        rules = object_rules(reading.document, given, reading.providers, reading.keys.values())
        reading.settings[OBJECTS] = rules
        if rules is not None and not rules.is_open:  # they may name objects
            reading.settings[READS_FORMS] = True

    def notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterator[str]:
        return object_notices(OBJECTS.of(snapshot), snapshot.state)

    def describe(self, snapshot: PolicySnapshot, shown: dict[str, Any]) -> dict[str, Any]:
        """Shows the owners of objects at providers."""
        return placed_after(["passthrough"], shown, objects=_shown(OBJECTS.of(snapshot)))


def _shown(rules: ObjectRules | None) -> dict[str, Any] | str:
    if rules is None:
        return "of the only tenant"
    shared = "all" if rules.is_open else sorted((*rules.ids, *(f"{prefix}*" for prefix in rules.prefixes)))
    return {"of": "their tenant", "shared": shared}


def object_rules(
    document: Document, given: Any, providers: Mapping[str, Provider], keys: Iterable[Key]
) -> ObjectRules | None:
    """Returns the rules, None where all callers are one tenant; notes the section's problems."""
    is_open, shared = _section(document, given)
    keys = tuple(keys)
    tenants = frozenset(key.tenant for key in keys)
    named = frozenset(key.tenant for key in keys if key.names_tenants)
    if len(tenants) < 2 and not named:
        return None
    return ObjectRules(
        scopes={name: scope_of(provider.base_url) for name, provider in providers.items()},
        is_open=is_open,
        ids=frozenset(one for one in shared if not one.endswith("*")),
        prefixes=tuple(one[:-1] for one in shared if one.endswith("*")),
        tenants=tenants,
        named=named,
    )


def object_notices(rules: ObjectRules | None, state: str) -> Iterator[str]:
    if rules is None:
        return
    if rules.is_open:
        yield "objects: shared: every tenant may read and delete the files, responses, ... of all others"
    elif state == "memory":
        yield (
            "state: memory: which tenant a file, batch, stored response, ... at a provider belongs to is forgotten when the "
            "process ends, and everybody gets 404 for it then: use sqlite:/// or redis://, or objects: shared"
        )


def _section(document: Document, given: Any) -> tuple[bool, list[str]]:
    if given is None:
        return False, []
    if given == SHARED:
        return True, []
    if not isinstance(given, dict):
        document.complain(("objects",), "must be `shared`, or a mapping such as {shared: [vs_abc, file-team*]}")
        return False, []
    entry = check(ObjectsEntry, document, ("objects",))
    return False, list(entry.shared or ()) if entry is not None else []
