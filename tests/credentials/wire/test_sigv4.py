"""Signatures of AWS, equal to botocore's: the table was made with botocore 1.44's SigV4Auth, for this time and these keys."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from gateway.core.types import Spliced
from gateway.credentials.aws import SigV4, hash_of
from gateway.credentials.fetch import AwsKeys

NOW = 1_795_423_200.0  # 2026-11-23T08:40:00Z
ACCESS, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
RUNTIME = "https://bedrock-runtime.us-east-1.amazonaws.com"
TYPED = (b"content-type", b"application/json")
VECTORS = [
    ("POST", f"{RUNTIME}/openai/v1/chat/completions", b'{"model":"m"}', "us-east-1", "bedrock", None,
     "67a2f5bebc0c11dfbf02efd55adc1d3d736b6be9b932eed9164ecd0c774080c3"),
    ("POST", "https://bedrock-runtime.eu-west-1.amazonaws.com/model/anthropic.claude-opus-4-5%3A0/converse", b"{}",
     "eu-west-1", "bedrock", "tok/en+with=signs", "14d18ef0efd34d3d3b0ac671310822813e800207d0c9fa5647bb56a0a39c58c4"),
    ("POST", "https://bedrock-runtime.us-west-2.amazonaws.com/model/arn%3Aaws%3Abedrock%3Aus-west-2%3A123%3Ainference-profile"
     "%2Fus.x/converse-stream", '{"t":"é"}'.encode(), "us-west-2", "bedrock", "t",
     "2c708f9c83a66fb9c1c5d0195e731631e5874c2f6729343b12ce04979b9888ef"),
    ("GET", "https://bedrock-mantle.us-east-1.api.aws/v1/models?b=2&a=1&a=0&empty", b"", "us-east-1", "bedrock-mantle", None,
     "7e7ec446be2b719317379948e7192a8cb2e4bbaa0079a5e3f8c79d89e8458b68"),
    ("POST", "http://127.0.0.1:8443/openai/v1//chat/./completions?limit=1%2C2", b'{"a": 1}', "us-east-1", "bedrock", None,
     "1838f6da8ad830c9eefe96951b7c028d0d32e036855a57893cc9ff56b561c72f"),
    ("GET", f"{RUNTIME}/", b"", "us-east-1", "bedrock", None,
     "b184a59c096a222dacead2193571c2d4fa05eaf76cd198a8221e4e8f08179e5d"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "url", "body", "region", "service", "token", "signature"), VECTORS)
def test_signatures_are_botocores(
    method: str, url: str, body: bytes, region: str, service: str, token: str | None, signature: str
) -> None:
    """Paths that are encoded already, queries out of order, session tokens, ports; the same again from what was kept."""
    parts = urlsplit(url)
    target = (parts.path + (f"?{parts.query}" if parts.query else "")).encode()
    said = ((b"host", parts.netloc.encode()), *((TYPED,) if method == "POST" else ()))
    names = [*(["content-type"] if method == "POST" else []), "host", "x-amz-date"]
    names += ["x-amz-security-token"] if token else []
    signer, keys = SigV4(region, service), AwsKeys(ACCESS, SECRET, token)

    made = [signer.headers(keys, method, target, said, hash_of(body), NOW + again / 4) for again in range(2)]

    assert made[0] == made[1]
    headers = dict(made[0])
    assert headers[b"x-amz-date"] == b"20261123T084000Z"
    assert headers.get(b"x-amz-security-token") == (token.encode() if token else None)
    assert headers[b"authorization"].decode() == (
        f"AWS4-HMAC-SHA256 Credential={ACCESS}/20261123/{region}/{service}/aws4_request, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )


def test_another_second_another_day_and_other_keys_sign_otherwise() -> None:
    """What is kept for a second or a day is of these keys alone."""
    signer, said = SigV4("us-east-1", "bedrock"), ((b"host", b"h"),)
    one, other = AwsKeys("A", "a" * 20), AwsKeys("A", "b" * 20)

    def signed(keys: AwsKeys, now: float) -> bytes:
        return dict(signer.headers(keys, "POST", b"/x", said, hash_of(b""), now))[b"authorization"]

    made = [signed(one, NOW), signed(one, NOW + 1), signed(one, NOW + 86_400), signed(other, NOW), signed(one, NOW)]
    assert len(set(made)) == 4
    assert made[0] == made[4]


def test_a_body_in_pieces_is_hashed_as_it_is_sent() -> None:
    """A spliced body is one to the provider."""
    spliced = Spliced(b'{"model": "a", "input": "' + b"x" * 100_000 + b'"}', [(11, 12, b"other")])

    assert hash_of(spliced) == hash_of(bytes(spliced))
