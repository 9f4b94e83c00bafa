"""How requests about responses are refused."""

from __future__ import annotations

from gateway.core.errors import CallerFault


class ResponseNotFound(CallerFault):
    """There is no such response, or it is another tenant's: in OpenAI's words."""

    status = 404
    code = None

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id '{response_id[:256]}' not found.")


class BackgroundRefused(CallerFault):
    """Nothing of the key's responses may be kept, and one in the background has to be."""

    code = "background_not_allowed"
