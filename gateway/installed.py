"""Which products are here: a gateway whose tree has no folder of a product runs without it.

The lists that name products (`product_list`, `app`) import each of them only where it is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "gateway.features.sdk_retries": ("gateway.features.reuse",),  # a retry shares the answer as equal calls do
    "gateway.features.semantic": ("gateway.features.reuse",),  # it is one of the layers that have answers
    # these put jobs together
    "gateway.products.durable": ("gateway.products.jobs",),
    "gateway.products.work": ("gateway.products.jobs",),
    # what these make is kept as jobs, or beside them, in the same store
    "gateway.products.batches": ("gateway.products.jobs",),
    "gateway.products.pipelines": ("gateway.products.batches", "gateway.products.jobs"),  # its steps are those
    "gateway.products.responses": ("gateway.products.jobs",),
    # both are served over WebSockets
    "gateway.products.responses.socket": ("gateway.products.responses", "gateway.products.realtime"),
}
"""The products that a product cannot do without: where one of them is missing, it counts as missing, too."""


def is_installed(package: str) -> bool:
    """Returns whether a product can be imported: its package or module is here, and so is all that it needs."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return False
    # What is left of a folder whose files are gone, such as a cache of compiled files, has no origin.
    return spec is not None and spec.origin is not None and all(map(is_installed, NEEDS.get(package, ())))
