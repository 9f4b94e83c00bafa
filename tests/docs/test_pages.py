"""What the pages say can be followed: links, commands, files, examples."""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.config.product_sections import entry_kinds
from gateway.sections import SECTIONS
from tests.docs.support import DOCS, PAGES, ROOT, fenced, prose, rows, section
from tests.rows import rows as each
from tests.support.configs import GOOD, load, load_text, problems_of

OTHERS = {
    str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "policies/README.md", ROOT / "deploy/README.md")
}
"""Pages that stay beside the files which they describe."""
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
NAMED_IN_FILE = re.compile(r"`([A-Za-z_]+)`[^`\[\]|.;]{0,60}? in \[[^\]]*\]\(([^)]+\.py)\)")
EXAMPLES = [
    pytest.param(text, id=f"{name}-{at}")
    for name, page in {**PAGES, **OTHERS}.items()
    for at, text in enumerate(fenced(page, "yaml"))
]
README_BYTES = 9_000


def anchors(page: str) -> set[str]:
    """What a link can name behind `#`: the headings, as GitHub writes them."""
    headings = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def test_readme_is_short() -> None:
    """It is what a newcomer reads whole; all else has its page."""
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


def test_numbers_of_the_readme_are_those_of_the_pages_that_it_quotes() -> None:
    """Whoever measures anew writes the figures down in both places."""
    table = section(PAGES["README.md"], "## Numbers")
    cells = " ".join(cell for row in rows(table) for cell in row[1:])
    measured = PAGES["docs/benchmarks.md"] + PAGES["docs/replicas.md"]

    figures = re.findall(r"\d[\d.,]*\d|\d", cells)

    assert len(figures) > 15
    assert [figure for figure in figures if figure not in measured] == []


def test_counts_of_calls_are_not_told_better_than_they_are() -> None:
    """The page of benchmarks tells no fewer Python calls than `tests.bench.calls` has counted last, rounded."""
    counted = json.loads((ROOT / "tests/bench/results/calls.json").read_text())["3.11"]
    told = re.search(
        r"through (\d+) Python functions .*? \(the floor: \d+\), an event of a stream through (\d+) \(the floor: \d+\)",
        " ".join(PAGES["docs/benchmarks.md"].split()),
    )

    assert told is not None
    for count, kind in zip(told.groups(), ("plain", "event"), strict=True):
        assert round(counted["gateway"][kind]["python"]) <= int(count), kind


@pytest.mark.parametrize("name", [*PAGES, *OTHERS])
def test_links_lead_somewhere(name: str) -> None:
    """Every relative link names a file that is there, and every anchor a heading of it."""
    pages = {**PAGES, **OTHERS}
    for link in LINK.findall(prose(pages[name])):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), file)) if file else name
        assert (ROOT / path).exists(), f"{name}: {link}"
        if anchor:
            text = pages.get(path) or (ROOT / path).read_text()
            assert anchor in anchors(text), f"{name}: {link}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    """No page is known only to who has listed the folder."""
    reached, rest = set[str](), ["README.md"]
    while rest:
        name = rest.pop()
        if name in reached or name not in PAGES:
            continue
        reached.add(name)
        links = [link.partition("#")[0] for link in LINK.findall(prose(PAGES[name]))]
        rest.extend(posixpath.normpath(posixpath.join(posixpath.dirname(name), link)) for link in links if link)

    assert reached == set(PAGES)


def test_make_targets_are_there() -> None:
    """`make x` on any page is a target of the Makefile."""
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {target for page in PAGES.values() for target in re.findall(r"(?:`|^)make ([a-z-]+)", page, re.MULTILINE)}

    assert {"run", "test", "bench"} <= told
    assert told <= there


def test_names_are_defined_in_the_files_that_they_are_said_to_be_in() -> None:
    """`next_step` in [core/retry.py](…): a reader who follows the link finds the definition."""
    named = NAMED_IN_FILE.findall(PAGES["docs/design.md"])

    assert len(named) > 15
    for name, link in named:
        assert name in definitions(link), f"{name} in {link}"


def test_rows_name_what_the_files_of_the_row_define() -> None:
    """Whatever stands in backticks where a row says where something is; `write` of `RunningWork`: in that class."""
    checked = 0
    for question, *cells in rows(PAGES["docs/design.md"]):
        for cell in cells:
            defined = {name for link in re.findall(r"\]\(([^)#]+\.py)\)", cell) for name in definitions(link)}
            owned = {f"{owner}.{name}" for name, owner in re.findall(r"`(\w+)` of (?:an? )?`(\w+)`", cell)}
            named = {*re.findall(r"`([A-Za-z_]\w*)`", cell), *owned} if defined else set()
            assert named <= defined, f"{question}: {named - defined}"
            checked += len(named)
    assert checked > 80


@cache
def definitions(link: str) -> frozenset[str]:
    """The functions, classes and assigned names of a module, those in classes also with the name of the class."""
    found = set[str]()
    for node in ast.walk(ast.parse((DOCS / link).read_text())):
        if isinstance(node, ast.Module | ast.ClassDef):
            for one in node.body:
                targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
                names = {getattr(one, "name", ""), *(getattr(target, "id", "") for target in targets)} - {""}
                found |= names | {f"{node.name}.{name}" for name in names if isinstance(node, ast.ClassDef)}
    return frozenset(found)


@each("example", EXAMPLES)
def test_examples_load(tmp_path: Path, example: str) -> None:
    """Each can be copied as it is: a policy file alone, a config with what it leaves out."""
    text = text_of(tmp_path, example)

    assert problems_of(tmp_path, text, environ_of(text)) == []
    notices = load_text(tmp_path, text, environ_of(text)).notices
    assert not [notice for notice in notices if "is refused models" in notice], "a key's budget keeps it from a model"


def test_the_first_check_of_the_first_hour_has_nothing_to_note(tmp_path: Path) -> None:
    """Of the file that the page has just written, in a folder as `mktemp -d` makes it."""
    written = re.search(r"^cat > config.yaml <<'END'\n(.*?)^END$", PAGES["docs/start.md"], re.MULTILINE | re.DOTALL)
    assert written is not None
    tmp_path.chmod(0o700)
    (tmp_path / "config.yaml").write_text(written[1])
    (tmp_path / "config.yaml").chmod(0o644)

    assert load(tmp_path / "config.yaml", {}).notices == ()


def text_of(home: Path, example: str) -> str:
    """Returns an example as a config that can be loaded, with what it names written into the folder."""
    first = example.splitlines()[0].partition("#")[2].partition("->")[0].strip()
    written: dict[str, Any] = yaml.safe_load(example)
    folder = home / "policies"
    shutil.copytree(ROOT / "policies", folder)
    for file, text in {
        "timeouts": "patient: {}",
        "cache": "thrifty: {exact: {requests: always}}\nhelpdesk: {}",
    }.items():
        (folder / f"{file}.yaml").write_text(text)
    (home / "invoice.json").write_text('{"type": "object"}')
    if first.startswith("policies/"):
        (home / first).parent.mkdir(exist_ok=True)
        (home / first).write_text(example)
        text = f"policies: policies\n{GOOD}  gpt-4o-mini: {{targets: [openai/gpt-4o-mini]}}\n"
    else:
        assert set(written) <= set(entry_kinds(SECTIONS).config.model_fields), "neither a config nor a policy"
        text = example if {"providers", "models"} <= set(written) else _completed(written)
    return text


def _completed(written: dict[str, Any]) -> str:
    """A part of a config with what it leaves out."""
    usual: dict[str, Any] = yaml.safe_load(GOOD)
    keyless = {"dialect": "openai", "base_url": "https://x"}
    others = dict.fromkeys(("azure-east", "azure-west"), keyless)
    providers = {**others, **usual["providers"], **written.get("providers", {})}
    return yaml.safe_dump({**usual, **written, "providers": providers})


def environ_of(text: str) -> dict[str, str]:
    """A value for every variable that the text names."""
    names = re.findall(r"\$\{([A-Z0-9_]+)|\benv\.([A-Z0-9_]+)", text)
    return {
        name: "0" * 64 if "SHA256" in name else f"a-secret-for-{name.lower()}"
        for pair in names
        for name in pair
        if name
    }
