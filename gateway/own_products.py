"""The products whose parts all stand in their own folder: one line for each, the outermost first.

Around a call they stand inside those of `call_products.py`, next to the provider.
"""

from __future__ import annotations

from typing import Final

from gateway.features.product import Product

OWN_PRODUCTS: Final[tuple[type[Product], ...]] = ()
