"""Puts a call where a target in another language, or with another way to name its model, takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.core.types.exchange import Outgoing
from gateway.dialects.base.base import ConvertedRequest
from gateway.dialects.registry.pair import Pair, Place, refuse
from gateway.dialects.registry.registry import COUNTS, PATHS

MARK: Final = b'"gw1.'
"""Begins the signature of thinking that another provider's model did; keep in step with `from_messages.thinking.MARK`."""
OF_MESSAGES: Final = (PATHS["messages"], PATHS[COUNTS])
_ANTHROPICS: Final = b"anthropic-"
"""Begins the headers that mean something to Anthropic's Messages alone."""
_TOKENS: Final = b"sk-ant-oat"
"""What begins like this is no key, but a token of a login at Anthropic."""


def addressed(outgoing: Outgoing, pair: Pair, sent: ConvertedRequest, body: bytes) -> Outgoing:
    """Returns the converted call; what the caller put behind its path was for another one."""
    place = sent.place or pair.place(outgoing.model, sent.asked.get("stream") is True)
    headers, credential = outgoing.headers, outgoing.credential
    if outgoing.path in OF_MESSAGES:
        kept = pair.kept_headers
        headers = [header for header in headers if header[0] in kept or not header[0].startswith(_ANTHROPICS)]
    if pair.spoken == "messages":
        credential = _as_key(credential)
    if pair.headers:
        names = {name for name, _ in pair.headers}
        headers = [*pair.headers, *(header for header in headers if header[0] not in names)]
    return replace(outgoing, path=place, query=b"", body=body, headers=headers, credential=credential)


def _as_key(credential: bytes | None) -> bytes | None:
    """Returns a caller's own key in the form that the version of Anthropic's API takes which converted calls name.

    OpenAI's clients know bearer tokens alone.
    """
    scheme, _, token = (credential or b"").partition(b" ")
    is_token = token.count(b".") == 2 or token.startswith(_TOKENS)
    return credential if is_token or scheme.lower() != b"bearer" else b"x-api-key " + token.strip()


def at_own_path(outgoing: Outgoing, place: Place) -> Outgoing:
    """Returns a call of Gemini's callers at Gemini: the bytes that they sent, and the model in the path again."""
    from gateway.dialects.gemini.in_request.path import taken_out  # only Gemini's callers need it

    is_stream, body = taken_out(bytes(outgoing.body))
    return replace(outgoing, path=place(outgoing.model, is_stream), query=b"", body=body)


def unmarked(outgoing: Outgoing) -> Outgoing:
    """Returns a call in the target's own language, whose bytes stay as they are, but for what we have put into its history.

    Raises InvalidRequest where that costs something, and nothing may be lost.
    """
    body = bytes(outgoing.body)
    if MARK not in body:
        return outgoing
    from gateway.dialects.anthropic.in_request.thinking import without_marks  # few conversations have one

    made, lost = without_marks(body)
    if lost and outgoing.signs is not None:
        refuse(lost, refuses_loss=outgoing.signs.refuses_loss)
        outgoing.signs.gaps = [*outgoing.signs.gaps, *lost]
    return replace(outgoing, body=made)
