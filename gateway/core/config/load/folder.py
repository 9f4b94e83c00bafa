"""Reads the policy folder into named sets; missing files and fields have built-in values.

A file with an unknown name is a mistake, not a comment. Invariant: every kind of set has a `default`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final

from gateway.core.config.admission import AdmissionRules, QueuePolicies, read_admission, read_queue
from gateway.core.config.error_tables import ErrorTables, read_error_tables
from gateway.core.config.fields.fields import substitute
from gateway.core.config.models.policies_models import read_models
from gateway.core.config.retries import read_breakers, read_retries
from gateway.core.config.source import Document, Problem, did_you_mean, read_document
from gateway.core.config.targets.timeouts import Timeouts, read_timeouts
from gateway.core.health.breaker.state_machine import BreakerRules
from gateway.core.retry.balancing import Retries
from gateway.dialects.known import ModelTable
from gateway.features.reuse.config import CachePolicies, read_caching
from gateway.features.runs.config import read_workflows
from gateway.features.runs.rules import Workflows
from gateway.products.jobs.config.policies_jobs import read_jobs
from gateway.products.jobs.rules import JobRules
from gateway.products.pipelines.config import read_pipeline_files

ERRORS: Final = "errors"
"""The folder of error tables in a policy folder."""
FILES: Final = (
    "admission.yaml",
    "breakers.yaml",
    "cache.yaml",
    "jobs.yaml",
    "models.yaml",
    "queue.yaml",
    "retries.yaml",
    "timeouts.yaml",
    "workflows.yaml",
)


@dataclass(frozen=True, slots=True)
class PolicySets:
    """The sets of every policy file by name, and the error tables by kind of provider."""

    admission: Mapping[str, AdmissionRules]
    queue: QueuePolicies
    retries: Mapping[str, Retries]
    breakers: Mapping[str, BreakerRules]
    timeouts: Mapping[str, Timeouts]
    cache: CachePolicies
    jobs: Mapping[str, JobRules]
    workflows: Workflows
    models: ModelTable
    errors: ErrorTables
    pipelines: tuple[Document, ...]
    """Compiled once the models are known."""
    documents: tuple[Document, ...]


def list_policy_files(folder: FilePath) -> list[FilePath]:
    """Returns the YAML files of a folder without hidden ones (Kubernetes swaps files there). Raises OSError."""
    return sorted(
        file for file in folder.iterdir() if file.suffix in {".yaml", ".yml"} and not file.name.startswith(".")
    )


def list_error_files(folder: FilePath) -> list[FilePath]:
    """Returns the error tables below a policy folder; none where it has no such folder. Raises OSError."""
    return list_policy_files(folder / ERRORS) if (folder / ERRORS).is_dir() else []


def read_policies(
    folder: FilePath | None, environ: Mapping[str, str], problems: list[Problem], beside: FilePath = FilePath()
) -> PolicySets:
    """Reads all sets; without a folder, the built-in ones. Raises OSError when the folder cannot be listed.

    Relative paths in the files start at the folder `beside`, that of the config.
    """
    documents: dict[str, Document] = {}
    for file in list_policy_files(folder) if folder else ():
        if file.name not in FILES:
            problems.append(Problem(str(file), 0, f"unknown policy file{did_you_mean(file.name, FILES)}"))
        elif document := read_document(file, problems):
            documents[file.name] = substitute(document, environ)
    errors = read_error_tables(list_error_files(folder) if folder else (), environ, problems)
    pipelines = read_pipeline_files(folder, environ, problems)
    return PolicySets(
        read_admission(documents.get("admission.yaml")),
        read_queue(documents.get("queue.yaml")),
        read_retries(documents.get("retries.yaml")),
        read_breakers(documents.get("breakers.yaml")),
        read_timeouts(documents.get("timeouts.yaml")),
        read_caching(documents.get("cache.yaml"), beside),
        read_jobs(documents.get("jobs.yaml")),
        read_workflows(documents.get("workflows.yaml")),
        read_models(documents.get("models.yaml")),
        errors,
        pipelines,
        (*documents.values(), *errors.documents, *pipelines),
    )
