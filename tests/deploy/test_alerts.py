"""The alert rules: Prometheus finds them, and each speaks of metrics, labels and codes that there are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from gateway.core.types import PASSING, ErrorClass
from tests.deploy.support import DEPLOY, ROOT, document, run, tool
from tests.docs.support import fenced, reference, words
from tests.docs.test_references import told_metrics

ALERTS = DEPLOY / "alerts.yaml"
PROMETHEUS = DEPLOY / "compose/prometheus.yml"
RULES: list[dict[str, Any]] = document(ALERTS)["groups"][0]["rules"]
SELECTOR = re.compile(r"(gateway_\w+)(?:\{([^}]*)\})?")


def test_prometheus_of_compose_loads_the_rules() -> None:
    """Its config names the file as the project mounts it, in the config's own folder; promtool agrees, where it is."""
    volumes = document(DEPLOY / "compose.yaml")["services"]["prometheus"]["volumes"]
    (named,) = document(PROMETHEUS)["rule_files"]

    assert f"./alerts.yaml:/etc/prometheus/{named}:ro" in volumes
    assert "./compose/prometheus.yml:/etc/prometheus/prometheus.yml:ro" in volumes
    promtool = tool("promtool")
    if promtool:
        run([promtool, "check", "rules", str(ALERTS)])


def test_rules_have_the_fields_of_prometheus() -> None:
    assert set(document(ALERTS)) == {"groups"}
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 15
    for rule in RULES:
        assert {"alert", "expr", "annotations"} <= set(rule) <= {"alert", "expr", "for", "annotations"}
        assert set(rule["annotations"]) == {"summary"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_metrics_labels_and_codes_of_a_rule_exist(rule: dict[str, Any]) -> None:
    """Also the labels that it groups by, and those that its summary quotes."""
    labels = {name: known for name, known in told_metrics().items() if name in rule["expr"]}
    selected = SELECTOR.findall(rule["expr"])
    assert selected

    for name, matchers in selected:
        assert name in labels
        for label, values in re.findall(r'(\w+)!?=~?"([^"]*)"', matchers):
            assert label in labels[name]
            if label in ("outcome", "code"):
                assert set(values.split("|")) <= words(reference("errors"))
    grouped = {one for names in re.findall(r"by \(([^)]*)\)", rule["expr"]) for one in names.split(", ")}
    quoted = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert grouped | quoted <= set.intersection(*labels.values())
    assert quoted <= grouped or not grouped


def test_calls_that_end_with_an_error_of_the_provider_are_among_those_that_fail() -> None:
    """Such a call has the error's class for an outcome: of a dead provider that answers, all of them."""
    (rule,) = (rule for rule in RULES if rule["alert"] == "GatewayFailsCalls")
    (outcomes,) = re.findall(r'outcome=~"([^"]*)"', rule["expr"])

    own = {*PASSING - {ErrorClass.CONFLICT}, ErrorClass.TIMEOUT, ErrorClass.MALFORMED_RESPONSE, ErrorClass.AUTH}
    assert {str(one) for one in own} <= set(outcomes.split("|"))


def test_the_operator_of_kubernetes_gets_the_same_rules() -> None:
    """By the command of the page, whose output is a PrometheusRule."""
    (command,) = (one for one in fenced((DEPLOY / "README.md").read_text(), "sh") if "PrometheusRule" in one)
    manifest = yaml.safe_load(run(["sh", "-c", f"cd {ROOT}; {command.replace('kubectl apply -f -', 'cat')}"]))

    assert (manifest["apiVersion"], manifest["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert manifest["spec"] == document(ALERTS)
