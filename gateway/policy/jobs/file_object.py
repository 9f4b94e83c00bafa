"""Files as the Files API shows them: https://platform.openai.com/docs/api-reference/files/object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.policy.jobs.job import StoredFile


def file_object(file: StoredFile) -> dict[str, Any]:
    """Returns a file as JSON."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",  # deprecated, but the schema and the SDKs want it
        "status_details": None,
    }


def list_page(objects: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Returns a page of a list, of whatever has an id."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }
