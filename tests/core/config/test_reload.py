"""Loading again: when, and what happens to what is in force."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.core.snapshot import PolicySnapshot
from gateway.housekeeping import Reloader, ReloadReport
from gateway.sections import SECTIONS
from tests.support.configs import ENVIRON, GOOD, NOW, load

OTHER = GOOD.replace("gpt-4o", "gpt-5")
BAD = GOOD.replace("targets", "tragets")


class Installed:
    """A process in miniature: what is in force, and what it was told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.snapshots: list[PolicySnapshot] = []
        self.reports: list[ReloadReport] = []
        self.reloader = Reloader(
            path,
            ENVIRON,
            sections=SECTIONS,
            load=lambda: load(path, version=len(self.snapshots) + 1),
            install=self.snapshots.append,
            wall=lambda: NOW,
        )

    def reload(self) -> ReloadReport:
        """A reload, whose report is kept."""
        self.reports.append(self.reloader.reload())
        return self.reports[-1]

    def poll(self) -> bool:
        """Two looks, as two seconds would bring."""
        return self.reloader.changed() or self.reloader.changed()

    def statuses(self) -> list[str]:
        return [report.status for report in self.reports]


@pytest.fixture
def app(tmp_path: Path) -> Installed:
    """A good config, in force."""
    (tmp_path / "config.yaml").write_text(GOOD)
    app = Installed(tmp_path / "config.yaml")
    app.reload()
    return app


def replace(path: Path, text: str) -> None:
    """As editors and config management do: write beside, then rename."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def test_first_load_is_installed_and_reported(app: Installed) -> None:
    """The report has the version and digest in force and the time."""
    digest = app.snapshots[0].digest

    assert app.reports == [ReloadReport("loaded", 1, digest, (), NOW)]
    assert app.reloader.last == app.reports[0]
    assert not app.poll()


def test_same_content_is_unchanged(app: Installed) -> None:
    """A reload that finds nothing new installs nothing."""
    replace(app.path, f"# a comment\n{GOOD}")

    assert app.poll()
    assert app.reload().status == "unchanged"
    assert len(app.snapshots) == 1
    assert not app.poll()


def test_snapshot_in_force_at_construction_counts(app: Installed) -> None:
    """An app that loaded by itself need not load twice."""
    reloader = Reloader(
        app.path,
        ENVIRON,
        sections=SECTIONS,
        load=lambda: load(app.path, version=9),
        install=app.snapshots.append,
        current=app.snapshots[0],
    )

    report = reloader.reload()

    assert (report.status, report.version, len(app.snapshots)) == ("unchanged", 1, 1)


def test_atomic_rename_is_noticed_and_loaded(app: Installed) -> None:
    """Another inode under the same name is another file."""
    replace(app.path, OTHER)

    assert app.poll()
    assert app.reload().status == "loaded"
    assert list(app.snapshots[-1].models) == ["gpt-5"]


def test_rename_of_a_file_with_the_same_time_and_size_is_noticed(app: Installed) -> None:
    """The inode alone tells them apart."""
    before = app.path.stat()
    new = app.path.with_suffix(".new")
    new.write_text(GOOD.replace("gpt-4o", "gpt-4q"))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.rename(app.path)

    assert app.path.stat().st_size == before.st_size
    assert app.poll()


def test_half_written_file_waits_until_it_is_at_rest(app: Installed) -> None:
    """While a file still grows from one look to the next, nothing is loaded."""
    assert not app.reloader.changed()
    for length in range(10, len(OTHER), 40):
        app.path.write_text(OTHER[:length])
        assert not app.reloader.changed()
    app.path.write_text(OTHER)

    assert not app.reloader.changed()
    assert app.reloader.changed()
    assert app.reload().status == "loaded"


def test_bad_config_keeps_the_old_and_a_good_one_heals(app: Installed) -> None:
    """Failure is reported once per change, with every problem and what stays in force."""
    replace(app.path, BAD)
    assert app.poll()
    failed = app.reload()

    assert (failed.status, failed.version, failed.digest) == ("failed", 1, app.snapshots[0].digest)
    assert "tragets" in "".join(failed.problems)
    assert not app.poll()

    replace(app.path, OTHER)
    assert app.poll()
    assert app.reload().version == 2
    assert app.statuses() == ["loaded", "failed", "loaded"]


def test_going_back_to_what_is_in_force_clears_the_failure(app: Installed) -> None:
    """The last report tells how things are now."""
    replace(app.path, BAD)
    app.reload()
    replace(app.path, GOOD)

    assert app.reload() == ReloadReport("unchanged", 1, app.snapshots[0].digest, (), NOW)


def test_missing_file_is_a_failure_and_its_return_is_noticed(app: Installed) -> None:
    """A file may be gone for a moment."""
    app.path.unlink()
    assert app.poll()
    assert app.reload().status == "failed"
    assert not app.poll()

    app.path.write_text(OTHER)
    assert app.poll()
    assert app.reload().status == "loaded"


def test_start_with_a_bad_config_can_be_healed(tmp_path: Path) -> None:
    """Nothing in force yet: version 0, no digest."""
    (tmp_path / "config.yaml").write_text("{{{")
    app = Installed(tmp_path / "config.yaml")

    assert (app.reload().version, app.reports[0].digest) == (0, "")
    replace(app.path, GOOD)
    assert app.poll()
    assert app.reload().status == "loaded"


def test_new_changed_and_removed_policy_files_are_noticed(app: Installed) -> None:
    """The folder counts as much as the config."""
    folder = app.path.parent / "policies"
    folder.mkdir()
    replace(app.path, f"policies: policies\n{GOOD}")
    app.reload()

    (folder / "timeouts.yaml").write_text("default: {connect: 1s}")
    assert app.poll()
    assert app.reload().status == "loaded"
    replace(folder / "timeouts.yaml", "default: {connect: 2s}")
    assert app.poll()
    assert app.reload().status == "loaded"
    (folder / "timeouts.yaml").unlink()
    assert app.poll()
    assert app.reload().status == "loaded"
    (folder / "README.md").write_text("not ours")
    assert not app.poll()
    connects = [snapshot.models["gpt-4o"].targets[0].clocks.connect_s for snapshot in app.snapshots]
    assert connects == [5, 5, 1, 2, 5]


def test_certificates_that_are_replaced_in_place_are_noticed(app: Installed) -> None:
    """As cert-manager does: the same name, another content, and so another provider, whose connections are new."""
    authorities = app.path.parent / "ca.pem"
    authorities.write_text("first")
    provider = '{dialect: openai, base_url: "https://p.example/v1", api_key: k-123456789, ca_file: ca.pem}'
    replace(app.path, f"providers: {{p: {provider}}}\nmodels: {{m: {{targets: [p/m]}}}}\n")
    app.reload()
    replace(authorities, "second")
    assert app.poll()
    assert app.reload().status == "loaded"
    assert not app.poll()
    replace(authorities, "second")
    assert app.poll()
    assert app.reload().status == "unchanged"

    before, after = [snapshot.providers["p"] for snapshot in app.snapshots[-2:]]
    assert before.ca_file == after.ca_file
    assert before != after


def test_new_changed_and_removed_error_tables_are_noticed(app: Installed) -> None:
    """The folder below the folder counts as well, and so does that there is one at all."""
    folder = app.path.parent / "policies" / "errors"
    folder.parent.mkdir()
    replace(app.path, f"policies: policies\n{GOOD}")
    app.reload()

    folder.mkdir()
    (folder / "openai.yaml").write_text("mine: {code: teapot, class: overloaded}")
    assert app.poll()
    assert app.reload().status == "loaded"
    replace(folder / "openai.yaml", "mine: {code: teapot, class: unknown}")
    assert app.poll()
    assert app.reload().status == "loaded"
    (folder / "openai.yaml").unlink()
    folder.rmdir()
    assert app.poll()
    assert app.reload().status == "loaded"
    firsts = [snapshot.models["gpt-4o"].targets[0].errors.rules[0] for snapshot in app.snapshots]
    assert [rule.error_class for rule in firsts if rule.name == "own openai: mine"] == ["overloaded", "unknown"]
    assert firsts[0] == firsts[1] == firsts[4]


def test_folder_that_vanishes_is_a_failure(app: Installed) -> None:
    """The old policies stay in force."""
    folder = app.path.parent / "policies"
    folder.mkdir()
    (folder / "timeouts.yaml").write_text("default: {connect: 1s}")
    replace(app.path, f"policies: policies\n{GOOD}")
    app.reload()
    (folder / "timeouts.yaml").unlink()
    folder.rmdir()

    assert app.poll()
    assert app.reload().status == "failed"


def test_swapped_symlinks_are_noticed(tmp_path: Path) -> None:
    """Kubernetes keeps every version in a hidden folder and swaps one link for all files."""
    for number, text in enumerate((GOOD, OTHER)):
        (tmp_path / f"..{number}" / "rules").mkdir(parents=True)
        (tmp_path / f"..{number}" / "config.yaml").write_text(f"policies: rules\n{text}")
        (tmp_path / f"..{number}" / "rules" / "timeouts.yaml").write_text(f"default: {{connect: {number + 1}s}}")
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    (tmp_path / "rules").symlink_to("..data/rules")
    app = Installed(tmp_path / "config.yaml")
    app.reload()

    (tmp_path / "..next").symlink_to("..1")
    (tmp_path / "..next").rename(tmp_path / "..data")

    assert app.poll()
    assert app.reload().status == "loaded"
    assert app.snapshots[-1].models["gpt-5"].targets[0].clocks.connect_s == 2


def test_change_while_loading_is_noticed_afterwards(tmp_path: Path) -> None:
    """The files are looked at before they are read, so nothing falls between."""
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)

    def load_and_change() -> PolicySnapshot:
        snapshot = load(path)
        replace(path, OTHER)
        return snapshot

    reloader = Reloader(path, ENVIRON, sections=SECTIONS, load=load_and_change, install=lambda _: None)
    reloader.reload()

    assert reloader.changed() or reloader.changed()
