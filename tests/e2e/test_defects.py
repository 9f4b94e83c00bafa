"""Defects of the gateway itself: the client learns that there was one, the log all the rest, once."""

from __future__ import annotations

import pytest

from gateway.core.admission.admission import Admission
from gateway.core.pipeline import Pipeline
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, Running, config_of, connect, get, post


def fail(*_args: object) -> None:
    """A function with a defect."""
    raise ZeroDivisionError("a defect")


def take_logged(caplog: pytest.LogCaptureFixture) -> tuple[list[str], str]:
    """The exceptions that the log shows a traceback of, and its text; they are expected, so the log forgets them."""
    found = [record.exc_info[0] for record in caplog.records if record.exc_info]
    text = caplog.text
    caplog.clear()
    return [kind.__name__ for kind in found if kind is not None], text


@pytest.mark.parametrize(("where", "what"), [(Admission, "admit"), (Pipeline, "handle")])
async def test_a_defect_in_a_call_is_logged_with_its_traceback(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: type, what: str
) -> None:
    """Whether the pipeline noticed it or not; the next call is served."""
    with monkeypatch.context() as patch:
        patch.setattr(where, what, fail)
        async with connect(gateway.url) as peer:
            answer = await peer.exchange(post())
    async with connect(gateway.url) as peer:
        served = await peer.exchange(post())

    assert (answer.status, answer.error["code"], served.status) == (500, "internal_error", 200)
    assert b"a defect" not in answer.raw
    kinds, text = take_logged(caplog)
    assert kinds == ["ZeroDivisionError"]
    assert (answer.header("x-request-id") or "?") in text


async def test_a_defect_elsewhere_is_logged_with_its_traceback(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Off the hot path too."""
    gateway = await start(lambda url: config_of(url, admin={"key": ADMIN_KEY}))
    monkeypatch.setattr("gateway.app.describe", fail)
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(get("/admin/config", f"authorization: Bearer {ADMIN_KEY}"))

    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert take_logged(caplog)[0] == ["ZeroDivisionError"]
