"""The gateway without one of its products: it starts, serves, and refuses what of a config is only for that product."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.core.config.product_sections import SectionSpec
from gateway.installed import NEEDS, is_installed
from gateway.product_list import PRODUCTS, ProductLine
from gateway.sections import SECTIONS
from tests.rails.trees import MODULES, ROOT, all_imports_of

DELETABLE = (
    "gateway.dialects.count_tokens",
    "gateway.dialects.message_ids",
    "gateway.features.background_charges",
    "gateway.features.degrade",
    "gateway.features.grouping",
    "gateway.features.output",
    "gateway.features.ownership",
    "gateway.features.reuse",
    "gateway.features.runs",
    "gateway.features.sdk_retries",
    "gateway.features.semantic",
    "gateway.products.batches",
    "gateway.products.jobs",
    "gateway.products.jobs.webhooks",
    "gateway.products.pipelines",
    "gateway.products.realtime",
    "gateway.products.responses",
)
"""The products without which a gateway runs; where one goes, those that need it go with it (`NEEDS`)."""


@pytest.mark.parametrize("package", DELETABLE)
def test_a_gateway_without_a_product_serves_calls(package: str, tmp_path: Path) -> None:
    """Plain, streamed and retried calls; a config that names the product is refused, with the reason."""
    command = [sys.executable, "-m", "tests.support.without", package, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    "package", ["gateway.features.degrade", "gateway.features.output", "gateway.products.jobs.webhooks"]
)
def test_the_tests_of_the_core_pass_without_the_folder_of_a_product(package: str, tmp_path: Path) -> None:
    """In a copy of the tree, from which the folder is really deleted."""
    for part in ("gateway", "policies", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.rmtree(tmp_path.joinpath(*package.split(".")))
    core = [f"tests/core/test_{name}.py" for name in ("pipeline", "attempts", "hooks", "settle", "relay", "hedge")]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *core]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout


@pytest.mark.parametrize(
    ("product", "section"), list(zip([line for line in PRODUCTS if line.section], SECTIONS, strict=True))
)
def test_the_stand_in_of_a_section_knows_all_its_keys(product: ProductLine, section: SectionSpec) -> None:
    """Else a key of a product that is not here would be an unknown one."""
    assert [one.name for one in section.file_fields] == list(product.file_keys)
    assert [one.name for one in section.key_fields] == list(product.key_keys)
    assert [one.name for one in section.model_fields] == list(product.model_keys)
    assert list(section.policy_files) == list(product.policy_files)


def test_what_is_not_here_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that only holds what Python has left in it is none; nor is a product installed whose needs are not met."""
    (tmp_path / "left_over" / "__pycache__").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert is_installed("gateway.features.sdk_retries")
    assert not is_installed("gateway.features.no_such")
    assert not is_installed("no_such.features")
    assert not is_installed("left_over")
    monkeypatch.setattr("gateway.installed.NEEDS", {"gateway.features.sdk_retries": ("left_over",)})
    assert not is_installed("gateway.features.sdk_retries")


def test_a_product_is_imported_where_it_is_here_only() -> None:
    """Of a deletable product others import nothing at the top of a module, but those that need it."""

    def is_of(package: str, name: str) -> bool:
        return f"{name}.".startswith(f"{package}.")

    strays = {
        (module, name)
        for package in DELETABLE
        for module in MODULES
        for name in all_imports_of(module)
        if is_of(package, name) and not is_of(package, module)
        if not any(is_of(other, module) and package in needs for other, needs in NEEDS.items())
        # What is imported may need more than the rest of its product.
        if not any(
            f'is_installed("{one}")' in MODULES[module].read_text()
            for one in (package, *NEEDS)
            if is_of(package, one) and is_of(one, name)
        )
    }

    assert strays == set()


def test_each_product_can_be_taken_out() -> None:
    """A folder of features or products is a product; what several of them share stands in modules beside them."""
    folders = {
        f"gateway.{place}.{path.parent.name}"
        for place in ("features", "products")
        for path in (ROOT / "gateway" / place).glob("*/__init__.py")
    }

    assert folders - set(DELETABLE) == set()
