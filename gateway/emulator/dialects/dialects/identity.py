"""The headers by which each provider tells who it is, and what it calls a request."""

from __future__ import annotations

from gateway.emulator.answers.reply import Headers

_ORGANIZATION: Headers = ((b"openai-organization", b"org-emulator"), (b"openai-version", b"2020-10-01"))


def identity_of(dialect: str, draw: int) -> tuple[str, str, Headers]:
    """Returns the dialect, the id of a request made from a `draw` of 128 bits, and the headers of its answer."""
    drawn = f"{draw:032x}"
    name = f"req_{drawn}"
    match dialect:
        case "messages":
            return dialect, name, ((b"request-id", name.encode()), (b"anthropic-organization-id", b"org-emulator"))
        case "generate":
            return dialect, drawn, ((b"server-timing", b"gfet4t7; dur=1"), (b"x-frame-options", b"SAMEORIGIN"))
        case "converse":
            parts = (drawn[:8], drawn[8:12], drawn[12:16], drawn[16:20], drawn[20:])
            name = "-".join(parts)
            return dialect, name, ((b"x-amzn-requestid", name.encode()),)
    headers = ((b"x-request-id", name.encode()), *_ORGANIZATION)
    if dialect == "azure":
        headers += ((b"apim-request-id", drawn.encode()), (b"x-ms-region", b"Emulated Central"))
    elif dialect == "anthropic":
        headers += ((b"request-id", name.encode()),)
    return dialect, name, headers
