"""The image: pinned and hashed, without root, and made of what is in the checkout."""

from __future__ import annotations

import fnmatch
import json
import re

from gateway import __version__
from tests.deploy.support import DOCKERFILE, HEALTH_PATHS, ROOT, has_pinned_tag, instructions

CONTEXT_RULES = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]


def of(name: str) -> list[str]:
    """The arguments of every instruction of one name."""
    return [rest for one, rest in instructions() if one == name]


def last_stage() -> list[tuple[str, str]]:
    """What ends up in the image."""
    lines = instructions()
    return lines[max(i for i, (name, _) in enumerate(lines) if name == "FROM") :]


def is_in_context(path: str) -> bool:
    """Whether the build sees a path: as in `.dockerignore`, the last rule that matches decides."""
    parents = [path, *(path[:i] for i, letter in enumerate(path) if letter == "/")]
    seen = True
    for rule in CONTEXT_RULES:
        pattern = rule.removeprefix("!")
        if any(fnmatch.fnmatchcase(one, pattern) for one in parents):
            seen = rule.startswith("!")
    return seen


def test_bases_have_a_version() -> None:
    """What is built tomorrow is what was tested; both stages have the same Python."""
    bases = [rest.split()[0] for rest in of("FROM")]

    assert len(set(bases)) == 1
    assert all(has_pinned_tag(base) for base in bases)


def test_everything_that_is_fetched_has_a_hash() -> None:
    """An install either checks hashes or has no index to fetch from; nothing is added from a URL."""
    installs = re.findall(r"pip\S* (?:--python \S+ )?(?:install|wheel) [^&]*", " && ".join(of("RUN")))

    assert len(installs) == 4
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    assert not of("ADD")
    assert not re.search(r"https?://|curl|wget|apt-get", " ".join(of("RUN")))


def test_every_lock_line_has_a_hash() -> None:
    """pip would refuse the whole lock otherwise; found here instead of in a build."""
    for lock in ("requirements.lock", "deploy/build.lock"):
        text = (ROOT / lock).read_text().replace("\\\n", " ")
        pins = [line for line in text.splitlines() if line and line[0] != "#"]

        assert pins
        assert all("==" in line and "--hash=sha256:" in line for line in pins)


def test_the_lock_of_the_build_has_the_build_backend() -> None:
    """The package is built without isolation: what builds it comes from the lock."""
    required = re.search(r'requires = \["(\w+)', (ROOT / "pyproject.toml").read_text())

    assert required
    assert re.search(rf"^{required[1]}==", (ROOT / "deploy/build.lock").read_text(), re.M)


def test_what_is_copied_is_in_the_checkout_and_in_the_context() -> None:
    """A build fails where a source is missing or kept out by .dockerignore."""
    copies = [rest.split()[:-1] for rest in of("COPY") if "--from" not in rest]
    sources = [source for copy in copies for source in copy]

    assert {"gateway", "policies", "requirements.lock"} <= set(sources)
    assert all((ROOT / source).exists() and is_in_context(source) for source in sources)


def test_what_the_wheel_is_made_of_is_copied() -> None:
    """The readme, the licence and the policies that the package carries."""
    project = (ROOT / "pyproject.toml").read_text()
    copied = " ".join(of("COPY")).split()
    wanted = {"README.md", "LICENSE", "config.example.yaml", "policies", "pyproject.toml"}

    assert all(name in project or name == "pyproject.toml" for name in wanted)
    assert wanted <= set(copied)


def test_nothing_else_is_in_the_context() -> None:
    """Neither history nor environments nor somebody's config with secrets in it."""
    kept_out = (".git/config", ".venv/bin/python", "config.yaml", "tests/README.md", "gateway/__pycache__/cli.pyc")

    assert not any(is_in_context(path) for path in kept_out)
    assert is_in_context("gateway/drivers/redis/lua/any.lua")


def test_it_runs_as_a_fixed_number_that_is_not_root() -> None:
    """`runAsNonRoot` wants a number, and manifests name it; the user exists before it is used."""
    stage = last_stage()
    (user,) = (rest for name, rest in stage if name == "USER")

    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    assert f"--uid {user.split(':')[0]}" in " ".join(rest for name, rest in stage if name == "RUN")


def test_it_is_the_gateway_and_gets_its_signals() -> None:
    """No shell stands between SIGTERM and the process, which drains."""
    stage = dict(last_stage())

    assert json.loads(stage["ENTRYPOINT"]) == ["gateway"]
    assert json.loads(stage["CMD"]) == ["serve", "--config", "/etc/gateway/config.yaml"]
    assert stage["STOPSIGNAL"] == "SIGTERM"


def test_its_health_check_asks_a_path_that_exists() -> None:
    """With the Python that is there: the image has no curl."""
    (check,) = of("HEALTHCHECK")
    command = json.loads(check.partition("CMD")[2])
    paths = re.findall(r"'(/[a-z]+)'", command[2])

    compile(command[2], "HEALTHCHECK", "exec")
    assert command[:2] == ["python", "-c"]
    assert len(paths) == 1
    assert set(paths) <= HEALTH_PATHS


def test_its_own_words_name_the_version_of_the_package() -> None:
    """The tag in the first line is what everything else in this folder runs."""
    assert f"llm-gateway:{__version__}" in DOCKERFILE.read_text()
