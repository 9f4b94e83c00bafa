"""Sketches of vectors: on which side of 256 random planes each lies, a bit for each plane.

Two vectors at an angle a are parted by a plane with probability a/pi (Charikar 2002), whatever their dimensions mean, so a
few words tell whether two of them can be near each other. It must not know rows. Invariant: the planes of a number of
dimensions are the same in every process with the same numpy; sketches are never kept for another.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import float32, int8, uint64
    from numpy.typing import NDArray

SKETCH_BITS = 256
SIGMAS = 4.0
"""The margin in standard deviations: one of 30,000 pairs as near as the threshold is missed."""

_SEED = 20_020_519
_SURE = 0.999  # nearer vectors are told apart by rounding alone


class Sketches:
    """Computes sketches; the random planes are the same in every process."""

    __slots__ = ("_np", "_planes")

    def __init__(self, np: Any) -> None:
        self._np = np
        self._planes: dict[int, NDArray[float32]] = {}

    def of(self, codes: NDArray[int8]) -> NDArray[uint64]:
        """Returns the words of one sketch."""
        sides: Any = self._planes_for(codes.size) @ codes.astype(self._np.float32) > 0
        return self._np.packbits(sides).view(self._np.uint64)  # type: ignore[no-any-return]  # numpy comes as Any: it is loaded late

    def of_many(self, codes: NDArray[int8]) -> NDArray[uint64]:
        """Returns a row of words for each vector."""
        sides: Any = codes.astype(self._np.float32) @ self._planes_for(codes.shape[1]).T > 0
        return self._np.packbits(sides, axis=1).view(self._np.uint64)  # type: ignore[no-any-return]  # numpy comes as Any: it is loaded late

    def _planes_for(self, dims: int) -> NDArray[float32]:
        planes = self._planes.get(dims)
        if planes is None:
            draw = self._np.random.default_rng(_SEED)
            planes = self._planes[dims] = draw.standard_normal((SKETCH_BITS, dims), self._np.float32)
        return planes


def reach(threshold: float) -> int:
    """Returns the number of bits in which the sketches of two vectors may differ whose cosine is the threshold.

    n p + 4 sqrt(n p (1 - p)), where p = acos(threshold) / pi.
    """
    share = math.acos(max(-1.0, min(threshold, _SURE))) / math.pi
    return int(SKETCH_BITS * share + SIGMAS * math.sqrt(SKETCH_BITS * share * (1.0 - share)))
