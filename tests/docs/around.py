"""The order of products around the calls of each documented config: `python -m tests.docs.around` writes it down again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.admin.explain import explain_products
from gateway.around import products_around
from gateway.core.request_fields import plan_route
from gateway.core.snapshot import PolicySnapshot
from gateway.dialects.endpoints import CHAT, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES
from tests.docs.support import PAGES, ROOT, fenced
from tests.docs.test_pages import environ_of, text_of
from tests.support.configs import load_text

FROZEN = Path(__file__).parent / "around.json"
ASKED = (CHAT, RESPONSES, MESSAGES, EMBEDDINGS, COUNT_TOKENS)
TOUR = "config.example.yaml"
Orders = dict[str, str]
"""What `gateway explain` prints, and behind each the routes of which it does so: a model, an endpoint, a key."""


def configs() -> Iterator[tuple[str, str]]:
    """Yields each documented config, with its name."""
    yield TOUR, (ROOT / TOUR).read_text()
    for page, text in PAGES.items():
        for at, example in enumerate(fenced(text, "yaml")):
            if not example.startswith("# policies/"):
                yield f"{page}-{at}", example


def orders_of(policy: PolicySnapshot) -> Orders:
    """Returns the orders around the calls of a config, of all its models and keys at some endpoints."""
    products, found = products_around(policy), dict[str, list[str]]()
    for model in (*policy.models.values(), *(model for _, model in policy.patterns)):
        for endpoint in ASKED:
            for key in policy.keys.values() or (policy.anonymous,):
                facts = plan_route(policy, key, model, endpoint, is_callers=False).route
                lines = "; ".join(line[10:] for line in explain_products(products, facts))
                found.setdefault(lines, []).append(f"{model.name} {endpoint.name} {key.name}")
    return {lines: ", ".join(routes) for lines, routes in found.items()}


def all_orders() -> dict[str, Orders]:
    """Returns the orders of all documented configs."""
    found = {}
    for name, text in configs():
        with TemporaryDirectory() as folder:
            whole = text_of(Path(folder), text)
            # The tour loads as it is, with the variables that it names unset.
            environ = {} if name == TOUR else environ_of(whole)
            found[name] = orders_of(load_text(Path(folder), whole, environ))
    return found


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(all_orders(), indent=1) + "\n")
