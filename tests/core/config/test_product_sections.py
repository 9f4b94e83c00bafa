"""Parts of a config that products read: which fields there are then, and that what nothing reads is refused."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from gateway.core.config.load import load_snapshot
from gateway.core.config.product_sections import Sections, entry_kinds
from gateway.core.config.schema import ConfigFile, KeyEntry, ModelEntry
from gateway.core.errors import ConfigError
from gateway.dialects.config import DialectLanguages
from gateway.product_list import ProductLine
from gateway.sections import SECTIONS, NotInstalled, section_of
from tests.rows import rows
from tests.support.configs import ENVIRON, GOOD, NOW, connect

DEGRADED = GOOD.replace("gpt-4o]}", "gpt-4o], degrade: {when: {first_byte_p95_above: 1s}, set: {max_tokens: 9}}}")


def problems(folder: Path, text: str, sections: Sections) -> list[str]:
    path = folder / "config.yaml"
    path.write_text(text)
    try:
        load_snapshot(
            *(path, ENVIRON),
            sections=sections,
            languages=DialectLanguages(),
            connect=connect,
            version=1,
            now_wall=NOW,
        )
    except ConfigError as error:
        return [problem.removeprefix(f"{folder}/") for problem in error.problems]
    return []


@rows(
    "text, problem",
    [
        (f"{GOOD}objects: shared", 'config.yaml:5: objects: "ghost" is not installed'),
        (DEGRADED, 'config.yaml:4: models.gpt-4o.degrade: "ghost" is not installed'),
        (
            f"{GOOD}keys: [{{name: web, key: a-secret-of-the-web, workflow: w}}]",
            'config.yaml:5: keys[0].workflow: "ghost" is not installed',
        ),
        (f"{GOOD}policies: rules", 'rules/cache.yaml:1: "ghost" is not installed'),
    ],
)
def test_what_a_product_would_read_that_is_not_there_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """Each by its place; a config that names nothing of it is good."""
    ghost = NotInstalled("ghost", file=["objects"], key=["workflow"], model=["degrade"], policies=["cache.yaml"])
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "cache.yaml").write_text("default: {}\n")

    assert problems(tmp_path, GOOD, (ghost,)) == []
    assert problems(tmp_path, text, (ghost,)) == [problem]


def test_a_core_without_products_loads_a_plain_config(tmp_path: Path) -> None:
    """And knows none of their fields."""
    assert problems(tmp_path, GOOD, ()) == []
    assert ["degrade: unknown field" in one for one in problems(tmp_path, DEGRADED, ())] == [True]


def test_a_package_that_is_gone_leaves_what_refuses_its_fields(tmp_path: Path) -> None:
    """What is missing inside of a product that is there is no such case."""
    gone = section_of(ProductLine("gateway.features.nowhere", "NoSection", model_keys=["degrade"]))

    assert problems(tmp_path, DEGRADED, (gone,)) == ['config.yaml:4: models.gpt-4o.degrade: "nowhere" is not installed']
    with pytest.raises(AttributeError):
        section_of(ProductLine("gateway.features.degrade", "NoSection"))


def test_fields_of_any_products_leave_those_of_the_core_in_their_order() -> None:
    """Whichever two of them are not there: each field is there once, and none of the core's has moved."""
    for left_out in combinations(SECTIONS, 2):
        kinds = entry_kinds(tuple(section for section in SECTIONS if section not in left_out))
        for kind, base in ((kinds.config, ConfigFile), (kinds.key, KeyEntry), (kinds.model, ModelEntry)):
            assert sorted(kind.field_order) == sorted(kind.model_fields)
            assert [name for name in kind.field_order if name in base.model_fields] == list(base.model_fields)
