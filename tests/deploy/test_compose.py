"""The compose project: its services know each other, its config is good, its balancer and its scraper find the replicas."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway import __version__
from gateway.core.errors import ConfigError
from gateway.products.jobs.rules import JOBS
from tests.deploy.support import (
    DEPLOY,
    HEALTH_PATHS,
    SECRET,
    compiled,
    document,
    documents,
    has_pinned_tag,
    run,
    seconds,
    tool,
    variables,
)
from tests.rows import rows

COMPOSE = DEPLOY / "compose.yaml"
CONFIG = DEPLOY / "compose/gateway/config.yaml"
HAPROXY = DEPLOY / "compose/haproxy.cfg"
PROMETHEUS = DEPLOY / "compose/prometheus.yml"
SERVICE_FIELDS = {
    *("image", "build", "command", "environment", "volumes", "ports", "depends_on", "healthcheck", "restart"),
    *("stop_grace_period", "read_only", "cap_drop", "security_opt", "mem_limit"),
}
"""Of the compose specification, those that are used; a slip of the pen is none of them."""


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    """By name; YAML's anchors are resolved."""
    return dict(document(COMPOSE)["services"])


def replicas(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: one for name, one in services.items() if one["image"].startswith("llm-gateway")}


def test_the_project_is_one_that_compose_understands(services: dict[str, dict[str, Any]]) -> None:
    """Only known fields; every image, volume, file and service that is named is there. Asked of docker, too, where it can."""
    project = document(COMPOSE)

    assert set(project) == {"name", "x-gateway", "services", "volumes"}
    for one in services.values():
        assert set(one) <= SERVICE_FIELDS
        assert set(one.get("depends_on", ())) <= set(services)
        for volume in one.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in project["volumes"]
    docker = tool("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        run([docker, "compose", "-f", str(COMPOSE), "config", "--quiet"])


def test_images_have_a_version(services: dict[str, dict[str, Any]]) -> None:
    """Ours is that of the package."""
    assert all(has_pinned_tag(one["image"]) for one in services.values())
    assert {one["image"] for one in replicas(services).values()} == {f"llm-gateway:{__version__}"}


def test_the_build_is_of_this_checkout(services: dict[str, dict[str, Any]]) -> None:
    """Paths are seen from the folder of compose.yaml, the Dockerfile from its context."""
    for one in replicas(services).values():
        context = (DEPLOY / one["build"]["context"]).resolve()

        assert (context / one["build"]["dockerfile"]).is_file()
        assert (context / "pyproject.toml").is_file()


def test_the_config_is_good_and_shared(services: dict[str, dict[str, Any]]) -> None:
    """It compiles as it is, keeps its state in the Redis of the project, and counts as many replicas as there are."""
    policy = compiled(CONFIG, WEB_KEY=SECRET)

    assert policy.shared is not None
    assert policy.shared.url.startswith("redis://redis:6379")
    assert "redis" in services
    assert policy.shared.replicas == len(replicas(services)) == 2


def test_the_redis_forgets_nothing_and_has_room(services: dict[str, dict[str, Any]]) -> None:
    """One that evicts may lose who runs a call, and what was paid for; one that is full is of no use."""
    command, bounds = services["redis"]["command"], compiled(CONFIG, WEB_KEY=SECRET).store
    told = dict(zip(command[1::2], command[2::2], strict=True))

    assert told["--appendonly"] == "yes"
    assert told["--appendfsync"] in ("everysec", "always")  # jobs are acknowledged by it
    assert told["--maxmemory-policy"] == "noeviction"
    assert int(told["--maxmemory"].removesuffix("gb")) * 2**30 >= 2 * (bounds.records + sum(bounds.answers.values()))


def test_files_of_batches_are_in_a_folder_that_all_replicas_have(services: dict[str, dict[str, Any]]) -> None:
    """The one that the image has made for its user: a volume takes its owner from there."""
    jobs = JOBS.of(compiled(CONFIG, WEB_KEY=SECRET)).settings

    assert jobs.redis is not None
    assert jobs.works
    for service in replicas(services).values():
        assert jobs.files.startswith("/var/lib/gateway/")
        assert "files:/var/lib/gateway" in service["volumes"]


def test_no_replica_starts_without_a_key() -> None:
    """It is reached from other containers, so anyone could call."""
    with pytest.raises(ConfigError):
        compiled(CONFIG)


def test_replicas_are_told_all_that_the_config_asks_for(services: dict[str, dict[str, Any]]) -> None:
    """Every variable of the config is in their environment; compose itself asks for what it cannot do without."""
    needed, optional = variables(CONFIG.read_text())
    for one in replicas(services).values():
        environ = one["environment"]

        assert set(environ) == needed | optional
        assert all(re.fullmatch(r"\$\{\w+:\?.+\}", environ[name]) for name in needed)


def test_a_replica_has_the_time_to_finish(services: dict[str, dict[str, Any]]) -> None:
    """Docker would kill it within the grace otherwise."""
    server = compiled(CONFIG, WEB_KEY=SECRET).server
    grace_s = server.notice_s + server.grace_s

    assert all(seconds(one["stop_grace_period"]) > grace_s for one in replicas(services).values())


def test_only_this_machine_reaches_what_is_published(services: dict[str, dict[str, Any]]) -> None:
    """What the balancer of a test offers is for whoever sits here."""
    published = [port for one in services.values() for port in one.get("ports", ())]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert not any("ports" in one for one in replicas(services).values())


def test_replicas_may_do_no_more_than_they_need(services: dict[str, dict[str, Any]]) -> None:
    """Nothing to write to but the files of batches, no capability, none to be had."""
    for one in replicas(services).values():
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert all(name.endswith(":ro") or name == "files:/var/lib/gateway" for name in one["volumes"])


def test_who_is_waited_for_has_a_health_check(services: dict[str, dict[str, Any]]) -> None:
    """The gateway's own is in the image."""
    for one in services.values():
        for name, how in one.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert name in replicas(services) or "healthcheck" in services[name]


def test_the_balancer_asks_and_finds_every_replica(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """By name and port, on a path that tells of draining; HAProxy itself agrees, where it is installed."""
    text = HAPROXY.read_text()
    port = compiled(CONFIG, WEB_KEY=SECRET).server.port
    servers = dict(re.findall(r"^\s+server (\S+) (\S+)", text, re.M))
    checked = re.search(r"option httpchk GET (\S+)", text)

    assert servers == {name: f"{name}:{port}" for name in replicas(services)}
    assert checked
    assert checked[1] == "/readyz"
    assert checked[1] in HEALTH_PATHS
    assert services["haproxy"]["ports"] == [f"127.0.0.1:{port}:8080"]
    assert re.search(r"^\s+bind :8080$", text, re.M)
    haproxy = tool("haproxy")
    if haproxy:
        run([haproxy, "-c", "-f", str(without_names(tmp_path, text))])


def without_names(folder: Path, text: str) -> Path:
    """The balancer's config for a machine on which nothing is called `gateway-1`."""
    path = folder / "haproxy.cfg"
    resolved = re.sub(r"gateway-\d:(\d+)", r"127.0.0.1:\1", text)
    path.write_text(resolved.replace("parse-resolv-conf", "nameserver none 127.0.0.11:53"))
    return path


def test_a_call_that_a_stopping_replica_refuses_goes_to_another() -> None:
    """For that HAProxy has to keep the whole call, and to choose again."""
    text = HAPROXY.read_text()

    assert re.search(r"retry-on conn-failure empty-response 503$", text, re.M)
    assert "option http-buffer-request" in text
    assert "option redispatch 1" in text


def test_the_scraper_finds_every_replica(services: dict[str, dict[str, Any]]) -> None:
    """On the port that the config gives to metrics."""
    policy = compiled(CONFIG, WEB_KEY=SECRET)
    assert policy.server.admin_listen is not None
    (job,) = document(PROMETHEUS)["scrape_configs"]
    targets = [target for group in job["static_configs"] for target in group["targets"]]

    assert job["metrics_path"] == "/metrics"
    assert targets == [f"{name}:{policy.server.admin_listen[1]}" for name in replicas(services)]
    promtool = tool("promtool")
    if promtool:
        run([promtool, "check", "config", str(PROMETHEUS)])


@rows("path", [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.yml")], ids=lambda path: path.name)
def test_every_yaml_file_can_be_read(path: Path) -> None:
    """And holds something."""
    assert documents(path)
