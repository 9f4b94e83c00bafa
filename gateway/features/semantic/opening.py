"""Opens the semantic cache when the first model of the config asks for it, with the extras that it needs.

A process whose models do not ask for it loads none of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gateway.core.clock import Clock
from gateway.core.ports import Vectors
from gateway.core.snapshot import PolicySnapshot
from gateway.features.semantic.embedders import Embedders

if TYPE_CHECKING:
    from gateway.features.semantic.local_model import LocalEmbedder
    from gateway.features.semantic.lookup.lookup import Semantic

log = logging.getLogger("gateway")


def open_semantic(
    policy: PolicySnapshot, opened: Semantic | None, embedders: Embedders, clock: Clock, store: Vectors
) -> Semantic | None:
    """Opens the models from disk that the policy needs, and returns the cache; None where no model has asked for it yet.

    `opened` is the cache that calls use already, which stays. This may take long, and may run in any thread.
    """
    models = (*policy.models.values(), *(model for _, model in policy.patterns))
    rules = [model.caching.semantic for model in models if model.caching.semantic is not None]
    for problem in embedders.prepare(rules):
        log.warning("%s", problem)
    if opened is not None or not rules:
        return opened
    from gateway.features.semantic.index.index import VectorIndex  # an extra, that few pay for
    from gateway.features.semantic.lookup.lookup import Semantic  # as above

    return Semantic(clock, VectorIndex(), store, embedders.of)


def open_local(folder: str) -> LocalEmbedder:
    """Returns the embedder of a model on disk. Raises ValueError or ImportError."""
    from gateway.features.semantic.local_model import LocalEmbedder  # an extra, that few pay for

    return LocalEmbedder(folder)
