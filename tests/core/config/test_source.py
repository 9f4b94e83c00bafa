"""Reading a YAML file: values, lines, and every way a file can be unusable."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.core.config import source
from gateway.core.config.source import MAX_FILE_BYTES, Problem, read_document
from tests.rows import rows

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def read(tmp_path: Path, raw: bytes) -> tuple[object, list[str]]:
    file = tmp_path / "x.yaml"
    file.write_bytes(raw)
    problems: list[Problem] = []
    document = read_document(file, problems)
    return (document.data if document else None), [str(p).removeprefix(f"{tmp_path}/") for p in problems]


@rows(
    ("raw", "problem"),
    [
        (b"", "x.yaml: is empty"),
        (b" \n\n", "x.yaml: is empty"),
        (b"a: 1\nb: \xff", "x.yaml:2: is not valid UTF-8"),
        ("a: 1".encode("utf-16"), "x.yaml:1: is not valid UTF-8"),
        (b"a: 1\nb: \x00", "x.yaml:2: holds a control character that YAML does not allow"),
        (b"#" * (MAX_FILE_BYTES + 1), "x.yaml: is larger than 1000000 bytes"),
        (
            b"a:\n\tb: 1",
            "x.yaml:2: is not valid YAML: a tab or another character that YAML does not allow here; indent with spaces",
        ),
        (b"a: 1\n---\nb: 2", "x.yaml:2: is not valid YAML: only one document per file: remove the second `---`"),
        (b"m:\n  *: 1", 'x.yaml:2: is not valid YAML: a name that begins with * must be quoted: "*"'),
        (b"a: *nope", "x.yaml:1: is not valid YAML: found undefined alias"),
        (b"[" * 900_000, "x.yaml:1: is nested deeper than 30 levels"),
        (BOMB.encode(), "x.yaml:1: grows too large; do its aliases repeat each other?"),
        (b"a: &a [*a]", "x.yaml:1: grows too large; do its aliases repeat each other?"),
        (b"a: 1\nb: 2\na: 3", 'x.yaml:3: "a" is here twice, first on line 1'),
        (b"1: x", 'x.yaml:1: the name "1" is not text: quote it'),
        (b"? [a, b]\n: x", "x.yaml:1: the name is not text: quote it"),
        (
            b"a: !!python/object/apply:os.system [ls]",
            'x.yaml:1: the tag "python/object/apply:os.system" is not allowed: only plain YAML is',
        ),
        (b"a: !mine x", 'x.yaml:1: the tag "!mine" is not allowed: only plain YAML is'),
        (b"a:\n  <<: 3", "x.yaml:2: `<<` takes a mapping or a list of mappings"),
    ],
)
def test_unusable_file_is_one_problem_line(tmp_path: Path, raw: bytes, problem: str) -> None:
    """Whatever is wrong with a file is said in one line with its place."""
    _, problems = read(tmp_path, raw)

    assert problems == [problem]


@rows(
    ("name", "words"),
    [
        ("missing.yaml", "there is no such file"),
        ("folder", "is a directory, not a file"),
        ("file/under.yaml", "cannot be read: Not a directory"),
        ("x" * 300, "cannot be read: File name too long"),
        ("a\0b", "cannot be read: embedded null byte"),
    ],
)
def test_path_that_is_no_file_is_a_problem(tmp_path: Path, name: str, words: str) -> None:
    """A path that cannot be opened is told apart by why."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    problems: list[Problem] = []

    assert read_document(tmp_path / name, problems) is None
    assert [p.message for p in problems] == [words]


def test_unreadable_file_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the process may not read is named as such (tests may run as root, so the refusal is played)."""
    file = tmp_path / "x.yaml"
    file.write_text("a: 1")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    problems: list[Problem] = []

    assert read_document(file, problems) is None
    assert [p.message for p in problems] == ["cannot be read: Permission denied"]


def test_plain_values_are_read_as_yaml_says(tmp_path: Path) -> None:
    """Numbers, flags and nulls keep their types; a date stays text, for it is an API version."""
    data, problems = read(tmp_path, b"\xef\xbb\xbfa: 1\nb: 1.5\nc: true\nd:\ne: 2024-10-21\nf: [x, 2]\ng: !!int abc\n")

    assert problems == []
    assert data == {"a": 1, "b": 1.5, "c": True, "d": None, "e": "2024-10-21", "f": ["x", 2], "g": "abc"}


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    """Aliases repeat a value; a merge key fills in what is not there, the first of several bases first."""
    data, problems = read(tmp_path, b"b: &b {x: 1, y: 2}\nc: *b\nd: {<<: [*b, {x: 9, z: 3}], y: 5}\n")

    assert problems == []
    assert data == {"b": {"x": 1, "y": 2}, "c": {"x": 1, "y": 2}, "d": {"x": 1, "y": 5, "z": 3}}


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    """Paths lead to the line of the name or list item; an unknown path to the nearest thing around it."""
    file = tmp_path / "x.yaml"
    file.write_text("# tour\na:\n  b:\n    - x\n    - c: 1\n\n      d: 2\n")

    document = read_document(file, [])

    assert document is not None
    assert document.line_of(("a", "b")) == 3
    assert document.line_of(("a", "b", 1)) == 5
    assert document.line_of(("a", "b", 1, "d")) == 7
    assert document.line_of(("a", "b", 0, "nothing")) == 4
    assert document.line_of(("q",)) == 2


def test_pure_python_parser_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where libyaml is missing, problems are still problems."""
    monkeypatch.setattr(source, "_Loader", yaml.SafeLoader)

    assert read(tmp_path, b"a: [1, {b: x}]") == ({"a": [1, {"b": "x"}]}, [])
    for raw in (b"[" * 5000, b"a: \x00", b"a:\n\tb: 1", b"a: *x", b"a: 1\n---\nb: 2"):
        assert len(read(tmp_path, raw)[1]) == 1
