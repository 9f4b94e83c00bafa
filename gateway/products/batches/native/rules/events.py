"""What may be heard of a part at a provider. Nothing else makes one part of another."""

from __future__ import annotations

from typing import NamedTuple

from gateway.products.batches.native.formats.remote import RemoteBatch


class FileThere(NamedTuple):
    """The provider has the input file."""

    id: str


class BatchThere(NamedTuple):
    """The provider has told of the batch."""

    batch: RemoteBatch


class NotListed(NamedTuple):
    """The provider's list does not have what was looked for."""


class Unsure(NamedTuple):
    """The provider's list has what may be what was looked for; it cannot be told yet."""

    why: str


class Gone(NamedTuple):
    """The provider knows nothing under that id."""


class Failed(NamedTuple):
    """There was no answer, or none to go by: what was asked may have been done."""

    why: str
    retry_after_s: float = 0.0


class Unsent(NamedTuple):
    """It was not asked: there was no connection, or the moment to ask had passed."""

    why: str


class Refused(NamedTuple):
    """The provider will not do it, and has not."""

    why: str
    is_full: bool = False
    """It has no room now."""


class Done(NamedTuple):
    """What the phase is for has been done: the batch was asked to stop, its input is gone, its answers are committed,
    its files are gone."""


PartEvent = FileThere | BatchThere | NotListed | Unsure | Gone | Failed | Unsent | Refused | Done
