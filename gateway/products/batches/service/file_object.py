"""Files as the Files API shows them: https://platform.openai.com/docs/api-reference/files/object."""

from __future__ import annotations

from typing import Any

from gateway.products.jobs.model.stored_file import StoredFile


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
