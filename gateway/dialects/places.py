"""Where a model is asked, below the base URL: some languages have the model in the path, and one path for streams."""

from __future__ import annotations

from urllib.parse import quote

from gateway.core.types import ErrorClass, Phase, UpstreamFailed
from gateway.dialects.known import without_region


def at_converse(model: str, is_stream: bool) -> str:
    """Returns where Bedrock's Converse is asked. Raises UpstreamFailed as `segment_of` does."""
    return f"/model/{segment_of(model)}/converse{'-stream' if is_stream else ''}"


def at_invoke(model: str, is_stream: bool) -> str:
    """Returns where Bedrock's InvokeModel is asked. Raises UpstreamFailed as `segment_of` does."""
    return f"/model/{segment_of(model)}/invoke{'-with-response-stream' if is_stream else ''}"


def at_count(model: str, _is_stream: bool) -> str:
    """Returns where Bedrock's CountTokens is asked, which knows models, and none by a profile of several regions.

    Raises UpstreamFailed as `segment_of` does.
    """
    return f"/model/{segment_of(without_region(model))}/count-tokens"


def segment_of(model: str) -> str:
    """Returns a model's name as one step of a path, an ARN with slashes, too.

    Raises UpstreamFailed where it would lead to another one.
    """
    if model in ("", ".", "..") or not model.isprintable():
        raise UpstreamFailed(ErrorClass.BAD_REQUEST, Phase.NOTHING_SENT, "the model's name cannot be part of a URL")
    return quote(model, safe="")
