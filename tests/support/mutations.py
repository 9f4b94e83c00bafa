"""Bodies as no provider means to send them: known ones cut, doubled, filled up, or with bytes changed."""

from __future__ import annotations

import random

_FILLERS = (b" ", b"{", b"[", b'"', b"1 ", b"\n{", b"data: ", b"retry in ", b"limit 1 ", b"\xff", b"error ", b"\x00")


def mutated(body: bytes, draw: random.Random) -> bytes:
    """Another body, by one draw of `draw`."""
    at = draw.randrange(len(body) + 1)
    filler = draw.choice(_FILLERS)
    match draw.randrange(6):
        case 0:
            return body[:at]
        case 1:
            return body[at:]
        case 2:
            return body[:at] + filler * draw.randrange(5000) + body[at:]
        case 3:
            return body[:at] + draw.randbytes(draw.randrange(64)) + body[at + draw.randrange(8) :]
        case 4:
            return body * draw.randrange(1, 50)
        case _:
            return draw.randbytes(draw.randrange(2000))
