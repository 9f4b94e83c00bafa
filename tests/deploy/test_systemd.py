"""The unit: systemd accepts it, it gives little away, and it fits the config beside it."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

from tests.deploy.support import DEPLOY, compiled, run, tool, variables

UNIT = DEPLOY / "systemd/gateway.service"
CONFIG = DEPLOY / "systemd/config.yaml"
EXPOSED_AT_MOST = 15
"""Tenths, as `systemd-analyze security` counts; a unit that says nothing has 96."""

LOCKED = {
    *("DynamicUser", "NoNewPrivileges", "LockPersonality", "MemoryDenyWriteExecute", "RemoveIPC"),
    *(
        "PrivateDevices",
        "PrivateIPC",
        "PrivateTmp",
        "PrivateUsers",
        "ProtectClock",
        "ProtectControlGroups",
        "ProtectHome",
    ),
    *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables"),
    *("RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
}


def settings() -> dict[str, list[str]]:
    """Every setting with all its values; sections do not share names here."""
    found = defaultdict(list)
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.M):
        found[name].append(value)
    return found


def installed(folder: Path) -> Path:
    """The unit, with a program that is on this machine in the gateway's place."""
    path = folder / "gateway.service"
    path.write_text(UNIT.read_text().replace("/opt/gateway/bin/gateway", str(Path(sys.executable).resolve())))
    return path


def test_systemd_accepts_it(tmp_path: Path) -> None:
    """Each setting once, but for lists; nothing without a value that is meant to have one; systemd agrees, where it is."""
    found = settings()
    several = {name for name, values in found.items() if len(values) > 1}

    assert several <= {"ExecReload", "SystemCallFilter"}
    assert {name for name, values in found.items() if values == [""]} == {
        "CapabilityBoundingSet",
        "AmbientCapabilities",
    }
    assert found["Type"] == ["exec"]
    analyze = tool("systemd-analyze")
    if analyze:
        assert run([analyze, "verify", "--man=no", str(installed(tmp_path))]) == ""


def test_it_gives_little_away(tmp_path: Path) -> None:
    """No user of its own to begin with, no file but its state, no privilege; systemd's own measure agrees, where it is."""
    found = settings()

    assert {name for name, values in found.items() if values == ["yes"]} >= LOCKED
    assert found["ProtectSystem"] == ["strict"]
    assert found["CapabilityBoundingSet"] == [""]
    assert found["SystemCallFilter"][0] == "@system-service"
    assert set(found["RestrictAddressFamilies"][0].split()) == {"AF_INET", "AF_INET6", "AF_UNIX"}
    analyze = tool("systemd-analyze")
    if analyze:
        asked = [analyze, "security", "--offline=true", f"--threshold={EXPOSED_AT_MOST}", "--json=short"]
        assert json.loads(run([*asked, str(installed(tmp_path))]))


def test_its_config_is_good(tmp_path: Path) -> None:
    """Its state goes where systemd lets it write; it needs no variable that may be missing."""
    policy = compiled(CONFIG, STATE_DIRECTORY=str(tmp_path))
    needed, optional = variables(CONFIG.read_text())

    assert policy.state == f"sqlite:///{tmp_path}/gateway.db"
    assert not needed
    assert optional == {"STATE_DIRECTORY", *variables_of_environment()}
    assert settings()["StateDirectory"] == ["gateway"]


def variables_of_environment() -> set[str]:
    """What the example of the environment file sets."""
    return set(re.findall(r"^(\w+)=", (DEPLOY / "systemd/environment.example").read_text(), re.M))


def test_it_has_the_time_to_finish(tmp_path: Path) -> None:
    """systemd would kill it within the grace otherwise."""
    grace_s = compiled(CONFIG, STATE_DIRECTORY=str(tmp_path)).server.grace_s

    assert float(settings()["TimeoutStopSec"][0]) > grace_s


def test_a_reload_checks_first() -> None:
    """A bad file fails the command before the process is told; both read the file that is served."""
    found = settings()
    check, tell = found["ExecReload"]

    assert tell == "kill -HUP $MAINPID"
    assert check == found["ExecStart"][0].replace(" serve ", " check ")


def test_it_comes_back_after_a_crash_but_not_after_a_bad_config() -> None:
    """2 is the exit code of a config that cannot be used."""
    found = settings()

    assert found["Restart"] == ["on-failure"]
    assert found["RestartPreventExitStatus"] == ["2"]
