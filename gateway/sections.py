"""What products read of a config, in the order in which it is read: one line for each."""

from __future__ import annotations

from typing import Final

from gateway.credentials.config import CredentialsSection
from gateway.dialects.config import ModelsSection
from gateway.features.degrade.config import DegradeSection
from gateway.features.grouping.config import GroupingSection
from gateway.features.output.config import OutputSection
from gateway.features.ownership.config import ObjectsSection
from gateway.features.reuse.config import CacheSection
from gateway.features.runs.config import WorkflowsSection
from gateway.products.jobs.config import JobsSection
from gateway.products.jobs.webhooks.config import WebhooksSection
from gateway.products.pipelines.config import PipelinesSection
from gateway.products.realtime.config import RealtimeSection
from gateway.products.responses.config import ResponsesSection

SECTIONS: Final = (
    CredentialsSection(),
    RealtimeSection(),
    CacheSection(),
    GroupingSection(),
    PipelinesSection(),
    OutputSection(),
    DegradeSection(),
    ObjectsSection(),
    JobsSection(),
    ResponsesSection(),
    WorkflowsSection(),
    WebhooksSection(),
    ModelsSection(),
)
