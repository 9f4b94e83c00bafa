"""The manifests: they agree with each other, with the image and with the config that they bring."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import __version__
from gateway.admin.http import LIVE_PATHS, READY_PATHS
from gateway.core.snapshot import PolicySnapshot
from tests.deploy.support import (
    DEPLOY,
    SECRET,
    compiled,
    document,
    documents,
    has_pinned_tag,
    instructions,
    run,
    tool,
    variables,
)
from tests.rows import rows

FOLDER = DEPLOY / "kubernetes"
MANIFESTS = [path for path in sorted(FOLDER.glob("*.yaml")) if path.name != "kustomization.yaml"]
API_VERSIONS = {
    "ConfigMap": "v1",
    "Deployment": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "Secret": "v1",
    "Service": "v1",
}
POD_FIELDS = {
    *("terminationGracePeriodSeconds", "automountServiceAccountToken", "enableServiceLinks", "securityContext"),
    *("topologySpreadConstraints", "initContainers", "containers", "volumes"),
}
CONTAINER_FIELDS = {
    *(
        "name",
        "image",
        "args",
        "restartPolicy",
        "env",
        "envFrom",
        "ports",
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
    ),
    *("lifecycle", "resources", "securityContext", "volumeMounts"),
}
WORKLOADS = ("sidecar.yaml", "deployment.yaml", "worker.yaml")


def found(kind: str) -> list[dict[str, Any]]:
    """Every object of a kind, in all files."""
    return [one for path in MANIFESTS for one in documents(path) if one["kind"] == kind]


def workload(file: str) -> dict[str, Any]:
    """The Deployment of a file."""
    (only,) = (one for one in documents(FOLDER / file) if one["kind"] == "Deployment")
    return dict(only["spec"])


def pod(file: str) -> dict[str, Any]:
    """What its pods are."""
    return dict(workload(file)["template"]["spec"])


def containers(file: str) -> Iterator[dict[str, Any]]:
    yield from pod(file).get("initContainers", ())
    yield from pod(file)["containers"]


def gateway_of(file: str) -> dict[str, Any]:
    """The container of the gateway."""
    (only,) = (one for one in containers(file) if one["name"] == "gateway")
    return only


def data() -> dict[str, str]:
    (config_map,) = found("ConfigMap")
    return dict(config_map["data"])


def mounted(file: str, folder: Path) -> Path:
    """The ConfigMap as the pods of a file see it, below `folder`; where the config is."""
    (volume,) = pod(file)["volumes"]
    for item in volume["configMap"]["items"]:
        path = folder / item["path"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(data()[item["key"]])
    return folder / "config.yaml"


def host_of(file: str) -> str | None:
    """What the environment says in place of `server.host`."""
    return next((one["value"] for one in gateway_of(file).get("env", ()) if one["name"] == "GATEWAY_HOST"), None)


def policy_of(file: str, folder: Path, **environ: str) -> PolicySnapshot:
    return compiled(mounted(file, folder), host_of(file), **environ)


@rows("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_of_known_kinds(path: Path) -> None:
    """With the version of their kind, a name, and no field that pods and containers do not have."""
    for one in documents(path):
        assert one["apiVersion"] == API_VERSIONS[one["kind"]]
        assert one["metadata"]["name"]
    if path.name in WORKLOADS:
        assert set(pod(path.name)) <= POD_FIELDS
        assert all(set(one) <= CONTAINER_FIELDS for one in containers(path.name))


def test_the_folder_can_be_applied_as_a_whole() -> None:
    """Every resource is there, the example of a Secret is not among them; kubectl agrees, where it is."""
    kustomization = document(FOLDER / "kustomization.yaml")

    assert set(kustomization) == {"apiVersion", "kind", "resources", "images"}
    assert set(kustomization["resources"]) == {"configmap.yaml", "deployment.yaml", "service.yaml"}
    assert all((FOLDER / name).is_file() for name in kustomization["resources"])
    assert [one["newTag"] for one in kustomization["images"]] == [__version__]
    kubectl = tool("kubectl")
    if kubectl:
        built = list(yaml.safe_load_all(run([kubectl, "kustomize", str(FOLDER)])))
        assert sorted(one["kind"] for one in built) == ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service"]


def test_one_gateway_can_keep_its_jobs_on_a_volume(tmp_path: Path) -> None:
    """What `kubernetes-single` changes: one pod at a time, and a volume where its config says that state and jobs are."""
    folder = DEPLOY / "kubernetes-single"
    (patch,) = document(folder / "kustomization.yaml")["patches"]
    changes = {one["path"]: one["value"] for one in yaml.safe_load(patch["patch"])}
    (claim,) = documents(folder / "volume.yaml")
    (url,) = changes["/spec/template/spec/containers/0/env"]
    mount = changes["/spec/template/spec/containers/0/volumeMounts/-"]
    volume = changes["/spec/template/spec/volumes/-"]

    assert (changes["/spec/replicas"], changes["/spec/strategy"]) == (1, {"type": "Recreate"})
    assert volume == {"name": mount["name"], "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    assert url["value"].startswith(f"sqlite:///{mount['mountPath']}/")
    kubectl = tool("kubectl")
    if kubectl:
        built = {one["kind"]: one for one in yaml.safe_load_all(run([kubectl, "kustomize", str(folder)]))}
        assert built["Deployment"]["spec"]["replicas"] == 1
        assert len(built["Deployment"]["spec"]["template"]["spec"]["volumes"]) == 2
        assert "PersistentVolumeClaim" in built


@pytest.mark.parametrize("file", WORKLOADS)
def test_the_config_is_good(file: str, tmp_path: Path) -> None:
    """With its policy files, with and without a Redis; whatever the ConfigMap holds is mounted."""
    (volume,) = pod(file)["volumes"]

    policy = policy_of(file, tmp_path, APP_KEY=SECRET, REDIS_URL="redis://redis:6379/0")

    assert policy.state == "redis"
    assert policy_of(file, tmp_path, APP_KEY=SECRET).state == "memory"
    assert {item["key"] for item in volume["configMap"]["items"]} == set(data())
    assert len(policy.files) == len(data())


@pytest.mark.parametrize("file", WORKLOADS)
def test_the_config_is_where_the_image_looks_for_it(file: str) -> None:
    """Its command names the file; the volume is the ConfigMap's."""
    command = dict(instructions())["CMD"]
    (mount,) = gateway_of(file)["volumeMounts"]
    (volume,) = pod(file)["volumes"]

    assert f"{mount['mountPath']}/config.yaml" in command
    assert mount["name"] == volume["name"]
    assert mount["readOnly"] is True
    assert volume["configMap"]["name"] == found("ConfigMap")[0]["metadata"]["name"]


@pytest.mark.parametrize("file", WORKLOADS)
def test_secrets_come_from_the_secret_alone(file: str) -> None:
    """The config names variables, all of which the Secret has; nothing in the ConfigMap or a pod is one."""
    (secret,) = found("Secret")
    config = yaml.safe_load(data()["config.yaml"])
    needed, optional = variables("".join(data().values()))
    credentials = [one["api_key"] for one in config["providers"].values()] + [one["key"] for one in config["keys"]]

    assert set(secret["stringData"]) == needed | optional
    assert all(value.startswith("${") for value in [*credentials, config["state"]])
    assert gateway_of(file)["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
    for one in containers(file):
        for variable in one.get("env", ()):
            assert "value" not in variable or not variable["name"].endswith(("KEY", "TOKEN", "PASSWORD"))


@pytest.mark.parametrize("file", WORKLOADS)
def test_ports_are_those_of_the_config(file: str, tmp_path: Path) -> None:
    """The admin port is that of metrics and probes; calls have the other, which a sidecar offers to nobody else."""
    server = policy_of(file, tmp_path, APP_KEY=SECRET).server
    ports = {one["name"]: one["containerPort"] for one in gateway_of(file)["ports"]}

    assert server.admin_listen is not None
    assert ports.pop("admin") == server.admin_listen[1]
    assert not ipaddress.ip_address(server.admin_listen[0]).is_loopback
    assert ports == ({"http": server.port} if file == "deployment.yaml" else {})


@pytest.mark.parametrize("file", WORKLOADS)
def test_probes_ask_paths_that_exist_on_a_port_that_they_reach(file: str) -> None:
    """Ready is asked before traffic comes, alive is all that a restart depends on."""
    container = gateway_of(file)
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}

    assert asked["startup"]["path"] in READY_PATHS
    assert asked["readiness"]["path"] in READY_PATHS
    assert asked["liveness"]["path"] in LIVE_PATHS
    assert {one["port"] for one in asked.values()} == {"admin"}


def test_the_sidecar_outlives_its_application(tmp_path: Path) -> None:
    """Kubernetes starts it first and stops it last; only its pod can call it, at the address that the application has."""
    server = policy_of("sidecar.yaml", tmp_path, APP_KEY=SECRET).server
    (sidecar,) = pod("sidecar.yaml")["initContainers"]
    (app,) = pod("sidecar.yaml")["containers"]
    environ = {one["name"]: one for one in app["env"]}

    assert sidecar["restartPolicy"] == "Always"
    assert ipaddress.ip_address(server.host).is_loopback
    assert environ["OPENAI_BASE_URL"]["value"] == f"http://{server.host}:{server.port}/v1"
    assert environ["OPENAI_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "llm-gateway", "key": "APP_KEY"}


@pytest.mark.parametrize("file", WORKLOADS)
def test_pods_have_the_time_to_finish(file: str, tmp_path: Path) -> None:
    """New calls stay away first, then running ones finish: the kubelet kills after both."""
    grace_s = policy_of(file, tmp_path, APP_KEY=SECRET).server.grace_s
    waits = [one["lifecycle"]["preStop"]["sleep"]["seconds"] for one in containers(file) if "lifecycle" in one]

    assert waits or file == "worker.yaml"
    assert pod(file)["terminationGracePeriodSeconds"] > max(waits, default=0) + grace_s


@pytest.mark.parametrize("file", WORKLOADS)
def test_images_have_a_version(file: str) -> None:
    """Ours is that of the package."""
    assert all(has_pinned_tag(one["image"]) for one in containers(file))
    assert gateway_of(file)["image"] == f"llm-gateway:{__version__}"


@pytest.mark.parametrize("file", WORKLOADS)
def test_pods_may_do_no_more_than_they_need(file: str) -> None:
    """The strictest of the pod security standards; the user is that of the image."""
    context = pod(file)["securityContext"]
    user = dict(instructions())["USER"]

    assert context["runAsNonRoot"] is True
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(file)["automountServiceAccountToken"] is False
    for one in containers(file):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(one["resources"]["requests"]) == {"cpu", "memory"}
        assert "memory" in one["resources"]["limits"]


@pytest.mark.parametrize("file", WORKLOADS)
def test_services_do_not_set_the_gateways_settings(file: str) -> None:
    """For a Service named `gateway` Kubernetes would set GATEWAY_PORT to a URL, and the gateway would not start."""
    assert pod(file)["enableServiceLinks"] is False


@pytest.mark.parametrize("file", WORKLOADS)
def test_selectors_find_their_pods(file: str) -> None:
    """Of the Deployment, of what spreads and protects it, and of the scraper."""
    labels = workload(file)["template"]["metadata"]["labels"].items()
    (monitor,) = (one["spec"] for one in found("PodMonitor"))

    assert workload(file)["selector"]["matchLabels"].items() <= labels
    assert monitor["selector"]["matchLabels"].items() <= labels
    for spread in pod(file).get("topologySpreadConstraints", ()):
        assert spread["labelSelector"]["matchLabels"].items() <= labels


def test_the_scraper_asks_the_port_of_metrics() -> None:
    """By its name, which both kinds of pod have."""
    (monitor,) = found("PodMonitor")

    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    assert (endpoint["port"], endpoint["path"]) == ("admin", "/metrics")
    assert all("admin" in [port["name"] for port in gateway_of(file)["ports"]] for file in WORKLOADS)


def test_the_service_leads_to_the_standalone_pods() -> None:
    """And to their calls, not to metrics or admin; an application's own pods are not among them."""
    (service,) = (one["spec"] for one in found("Service"))
    pods = workload("deployment.yaml")["template"]["metadata"]["labels"]
    (budget,) = (one["spec"] for one in found("PodDisruptionBudget"))

    assert service["selector"].items() <= pods.items()
    assert not service["selector"].items() <= workload("sidecar.yaml")["template"]["metadata"]["labels"].items()
    assert [port["targetPort"] for port in service["ports"]] == ["http"]
    assert budget["selector"]["matchLabels"] == service["selector"]


def test_an_update_takes_nothing_away_first() -> None:
    """A new replica is ready before an old one goes, and there is more than one."""
    spec = workload("deployment.yaml")

    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_workers_run_jobs_and_get_no_calls() -> None:
    """By the command of their own, out of reach of the Service."""
    (container,) = containers("worker.yaml")
    (service,) = found("Service")
    labels = workload("worker.yaml")["template"]["metadata"]["labels"]

    _, *config = json.loads(dict(instructions())["CMD"])
    assert container["args"] == ["work", *config]
    assert not service["spec"]["selector"].items() <= labels.items()
