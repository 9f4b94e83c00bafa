"""Our secrets in what providers say: masked in place, wherever they stand and however the bytes are cut."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Sequence

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.http.client.redaction import MIN_BYTES, SecretMasker, Secrets, secrets_of
from gateway.core.http.client.wire import Wire
from gateway.core.snapshot import Provider
from gateway.core.types import Answer, UpstreamFailed
from tests.core.http.client.test_wire import CHAT, read
from tests.rows import rows

KEY = "sk-proj-Ab3dE5fG7hJ9kL1m"
OTHER = "sk-proj-Zz8yX6wV4uT2sR0q"
VAULT = "vault/token+with=signs"
STARS = b"*" * len(KEY)
FORMS = [
    KEY.encode(),
    VAULT.encode(),
    rb"vault\/token+with=signs",
    rb"vault/token\u002Bwith=signs",
    rb"vault/token\u002bwith=signs",
    b"vault%2Ftoken%2Bwith%3Dsigns",
]
PROVIDER = Provider("main", "openai", "https://main.test/v1", api_key=KEY, secrets=(OTHER, VAULT))


def in_cuts(secrets: Secrets, text: bytes, cuts: Iterable[int]) -> list[bytes]:
    """What goes on of a text that comes in pieces, piece by piece."""
    seam = SecretMasker(secrets)
    edges = [0, *sorted(cuts), len(text)]
    return [*(seam.feed(text[a:b]) for a, b in itertools.pairwise(edges)), seam.end()]


@rows("form", FORMS)
def test_a_secret_is_masked_in_place_in_every_form_that_it_may_be_written_in(form: bytes) -> None:
    """As it was sent, with JSON's escapes, percent-encoded; the rest stays, and so does the length."""
    secrets = secrets_of(PROVIDER)
    assert secrets is not None

    assert secrets.mask(b'{"error": "' + form + b'"}') == b'{"error": "' + b"*" * len(form) + b'"}'


def escaped(text: str, how: Sequence[int]) -> bytes:
    """The text in JSON, each letter as it is, or escaped in one of the ways that decode to it."""
    forms = ["{0}", "\\u{1:04x}", "\\u{1:04X}", "\\\\u{1:04x}"]
    return "".join(forms[way].format(letter, ord(letter)) for letter, way in zip(text, how, strict=False)).encode()


@given(
    st.sampled_from([KEY, VAULT]),
    st.lists(st.integers(0, 3), min_size=24, max_size=24),
    st.lists(st.integers(0, 200), max_size=4),
)
@example(KEY, [0, 0, 1] + [0] * 21, [15])
def test_letters_that_json_may_escape_are_masked_with_the_others(text: str, how: list[int], cuts: list[int]) -> None:
    """As .NET and Gson write `-`; a conversion, or the client, would read the secret out of them."""
    form = escaped(text, how)
    said = b'{"error": "caf\\u00e9 ' + form + b'", "x": "\\u002d"}'
    secrets = secrets_of(PROVIDER)
    assert secrets is not None

    masked = b'{"error": "caf\\u00e9 ' + b"*" * len(form) + b'", "x": "\\u002d"}'
    assert secrets.mask(said) == masked
    assert b"".join(in_cuts(secrets, said, [min(cut, len(said)) for cut in cuts])) == masked


def test_what_holds_no_secret_is_given_back_as_the_same_object() -> None:
    """Which is how a clean block is told from one that was changed."""
    secrets = Secrets([KEY, OTHER, VAULT])
    block = b'data: {"delta": "sk-proj- is how keys begin"}\n\n' * 3

    assert secrets.mask(b"nothing") == b"nothing"
    assert secrets.mask(block) == block
    assert Secrets([KEY]).mask(block) is block


@rows("text", ["", "short", "x" * (MIN_BYTES - 1), "not-needed", "lm-studio", "sk-no-key-required"])
def test_short_texts_and_stand_ins_are_words(text: str) -> None:
    """To mask them would spoil answers that have nothing to do with them."""
    assert secrets_of(Provider("local", "openai", "http://local/v1", api_key=text)) is None


def test_a_beginning_waits_for_the_next_block_and_nothing_else_does() -> None:
    """An event that is whole goes at once; of one that ends in what may be a secret, only that is kept."""
    seam = SecretMasker(Secrets([KEY]))

    assert seam.feed(b'data: {"a": 1}\n\n') == b'data: {"a": 1}\n\n'
    assert seam.feed(b"data: your key sk-pr") == b"data: your key "
    assert seam.feed(b"oblem\n\n") == b"sk-problem\n\n"
    assert seam.feed(b"again sk-pro") == b"again "
    assert seam.feed(KEY[6:].encode() + b"!") == STARS + b"!"
    assert seam.feed(b"at the end: sk") == b"at the end: "
    assert seam.end() == b"sk"
    assert seam.end() == b""


SHORT = ["abcabcab", "bcabxbca", "aaaaaaaa", "aaaaaaaaab", "********"]


@example(pieces=["aaaaaaaaa", "aab"], cuts=[3, 9])
@example(pieces=["********", "***"], cuts=[4, 9])
@given(
    pieces=st.lists(st.one_of(st.sampled_from(SHORT), st.text("abx*", max_size=9)), max_size=8),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_cuts_change_nothing(pieces: Sequence[str], cuts: Sequence[int]) -> None:
    """Secrets that overlap, that begin like another, that are cut anywhere: as if all had come at once, and nothing is lost."""
    secrets = Secrets(SHORT)
    text = "".join(pieces).encode()

    parts = in_cuts(secrets, text, [min(cut, len(text)) for cut in cuts])

    assert b"".join(parts) == secrets.mask(text)
    assert len(b"".join(parts)) == len(text)
    assert not any(secret.encode() in b"".join(parts).replace(b"*", b"?") for secret in SHORT)


@given(st.text("abx", max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_no_more_is_held_back_than_may_be_a_secret(said: str, cuts: list[int]) -> None:
    """What is kept is always how a secret begins."""
    secrets = Secrets(SHORT)
    seam, text = SecretMasker(secrets), said.encode()
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]

    for a, b in itertools.pairwise(edges):
        seam.feed(text[a:b])
        kept = secrets.beginning(text[:b])
        assert seam.kept == text[b - kept : b]


# --- behind the wire ---


class Pieces(httpx.AsyncByteStream):
    """A body that comes in pieces, and may break."""

    def __init__(self, pieces: Sequence[bytes], error: Exception | None = None) -> None:
        self._pieces = pieces
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error


def wire_to(response: httpx.Response | Exception, provider: Provider = PROVIDER) -> Wire:
    """A wire whose provider answers so, or not at all."""

    def respond(_request: httpx.Request) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        return response

    return Wire(provider, "gpt-4o", httpx.MockTransport(respond))


async def ask(*pieces: bytes, error: Exception | None = None, headers: dict[str, str] | None = None) -> Answer:
    """The answer of a provider that says this."""
    return await wire_to(httpx.Response(200, headers=headers, stream=Pieces(pieces, error))).send(CHAT)


@pytest.mark.parametrize("secret", [KEY, OTHER, VAULT])
async def test_headers_and_bodies_come_without_the_providers_secrets(secret: str) -> None:
    """Its own credential, another one of its group, a header's; also cut in two."""
    text = f'{{"error": "bad key {secret}"}}'.encode()

    for cut in range(len(text) + 1):
        answer = await ask(text[:cut], text[cut:], headers={"x-a": "1", "x-your-key": f"<{secret}>"})
        assert await read(answer) == text.replace(secret.encode(), b"*" * len(secret))
        assert dict(answer.headers)[b"x-your-key"] == b"<" + b"*" * len(secret) + b">"
        assert dict(answer.headers)[b"x-a"] == b"1"


async def test_a_body_that_breaks_gives_what_was_kept_and_then_breaks() -> None:
    """What may have been a secret was none; an end that is an error stays one."""
    answer = await ask(b"all of it but sk-", error=httpx.ReadError("gone"))
    chunks = answer.chunks

    assert await anext(chunks) == b"all of it but "
    assert await anext(chunks) == b"sk-"
    with pytest.raises(httpx.ReadError):
        await anext(chunks)


@pytest.mark.parametrize("place", ["head", "body"])
async def test_a_failures_words_do_not_quote_a_secret(place: str) -> None:
    """Some libraries quote the bytes that they could not read; and no end of one is left where the words are cut off."""
    error = httpx.RemoteProtocolError(f"illegal status line: {'x' * 260} {KEY}")

    if place == "head":
        with pytest.raises(UpstreamFailed) as failed:
            await wire_to(error).send(CHAT)
        failure = failed.value
    else:
        failure = wire_to(error).failure(error)

    assert "sk-" not in failure.detail
    assert "illegal status line" in failure.detail


async def test_without_secrets_nothing_is_looked_at() -> None:
    """A provider without a credential of ours has none to tell: what its callers send is theirs."""
    answer = await wire_to(
        httpx.Response(200, stream=Pieces([KEY.encode()])), Provider("open", "openai", "http://open/v1")
    ).send(CHAT)

    assert await read(answer) == KEY.encode()
