"""Estimates a request's tokens, corrects that by real usage, and says what each limit is charged.

First the corrections that a model's calls have taught (`Calibration`), then what one call takes from limits (`Cost`), and
last the estimate itself: a heuristic over sizes (no tokenizer). It must not know limits. Invariants: total on any JSON
object; the work is bounded however large the body is.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, exp, log
from typing import Any, Literal, NamedTuple, TypeAlias

import orjson

from gateway.core.health.times import DecayingHistogram

# --- corrections: how far estimates are off, and how long answers get ---


class EstimateErrors(NamedTuple):
    """How far corrected estimates were off: running means of real/estimated and of |real - estimated| / real."""

    calls: int
    ratio: float
    mean_error: float


_OUTPUT_OCTAVES, _OUTPUT_HALF_LIFE = 24, 500
_FEW = 5
_FIRST_MARGIN = 0.25
"""What estimates may be short of, before it is known how good they are."""


_FEW_TOKENS = 100.0  # what a call of two words errs by is no measure for one of thousands


class Calibration:
    """What one model's finished calls taught: real to estimated input, and how long its answers get.

    Everything is O(1), and the oldest calls fade: half of the weight is the last 14 (input) or 500 (output) calls.

    It learns from what providers report. Invariant: a correction stays within a factor of four.
    """

    __slots__ = ("_first_output", "_log_ratio", "_outputs", "count", "error", "expected_output", "ratio")

    def __init__(self, first_output: int = 512) -> None:
        self.count = 0
        self._first_output = first_output
        self._log_ratio = 0.0
        self.ratio = 1.0
        """Real to estimated input tokens, 0.25 to 4."""
        self.expected_output = first_output
        """The 90th percentile of this model's answers, in tokens; `first_output` before any was seen."""
        self.error = 0.0
        """Mean of |real - estimated| / the greater of both, of corrected estimates; a call of few tokens errs by few."""
        self._outputs = DecayingHistogram(1.0, _OUTPUT_OCTAVES, _OUTPUT_HALF_LIFE, share=0.9)

    def expect(self, first_output: int) -> None:
        """Sets what an answer is taken to be long before any was seen, in tokens."""
        self._first_output = first_output
        if not self._outputs.weight:
            self.expected_output = first_output

    def input_estimate(self, estimated: int) -> int:
        """The estimate of `estimate_input_tokens`, corrected; at least 1."""
        return max(1, round(estimated * self.ratio)) if self.count else estimated

    def output_estimate(self, max_tokens: int | None) -> int:
        """`expected_output`, at most `max_tokens`."""
        expected = self.expected_output
        return expected if max_tokens is None else min(expected, max_tokens)

    @property
    def answers_seen(self) -> float:
        """The answers that show how long they get; later ones weigh more."""
        return self._outputs.weight

    def input_bound(self, estimated: int) -> float:
        """As `input_estimate`, and so much more that it is seldom too little."""
        margin = min(self.error, _FIRST_MARGIN) if self.count >= _FEW else _FIRST_MARGIN
        return self.input_estimate(estimated) * (1 + margin)

    def observe(self, estimated: int, real_input: int, real_output: int) -> None:
        """Learns from one finished call; `estimated` is uncorrected. Counts that are not positive teach nothing."""
        if real_output > 0:
            self._outputs.add(real_output)
            self.expected_output = ceil(self._outputs.edge)
        if estimated <= 0 or real_input <= 0:
            return
        self.count += 1
        # A plain mean at first; from the twentieth call on the last 14 have half of the weight.
        share = max(1 / self.count, 0.05)
        expected = estimated * self.ratio
        error = abs(real_input - expected) / max(real_input, expected, _FEW_TOKENS)
        self.error += share * (error - self.error)
        ratio = min(max(real_input / estimated, 0.25), 4.0)
        self._log_ratio += share * (log(ratio) - self._log_ratio)
        self.ratio = exp(self._log_ratio)

    def errors(self) -> EstimateErrors:
        """For the metric and `/admin`."""
        return EstimateErrors(self.count, self.ratio, self.error)


# --- costs: what one call takes from limits, by the part that each limit counts ---


REQUESTS, INPUT, OUTPUT, TOKENS, SLOT = range(5)
"""The parts of a cost, in the order of `Parts`: each limit counts one of them."""
TOKEN_PARTS = (INPUT, OUTPUT, TOKENS)
Parts: TypeAlias = tuple[float, float, float, float, float]


class Cost(NamedTuple):
    """What one call takes from each limit. A joint token limit takes the sum of both kinds of tokens."""

    requests: float = 1
    input_tokens: float = 0
    output_tokens: float = 0


NOTHING = Cost(0, 0, 0)


def parts_of(cost: Cost, slots: float | None = None) -> Parts:
    """Returns `cost` by the parts that limits count; `slots` None: as many slots as requests."""
    requests, input_tokens, output_tokens = cost
    return requests, input_tokens, output_tokens, input_tokens + output_tokens, requests if slots is None else slots


def charge(
    rule: ChargeRule,
    input_tokens: int,
    max_tokens: int | None,
    expected_output: int,
    *,
    cached: int = 0,
    excludes_cached: bool = False,
) -> Cost:
    """Returns what a provider charges for one request at admission; `max_tokens` None: what is expected.

    `max`: the larger of input and max_tokens; `sum`: both; `input`: the input alone; `real`: input and output as they will
    be by estimate, whatever max_tokens allows. The sum of both tokens of the result is the charge of a joint limit.
    """
    if excludes_cached:
        input_tokens = max(0, input_tokens - cached)
    return Cost(1, input_tokens, charged_output(rule, input_tokens, max_tokens, expected_output))


def charged_output(rule: ChargeRule, input_tokens: int, max_tokens: int | None, expected_output: int) -> int:
    """Returns the output tokens that `charge` comes to."""
    if rule == "input":
        return 0
    output_tokens = expected_output if max_tokens is None or rule == "real" else max_tokens
    # A joint limit adds the input, so for `max` only what the output has beyond it may be left here.
    return max(0, output_tokens - input_tokens) if rule == "max" else output_tokens


Count = Callable[[str], float]

# --- the estimate of a request's tokens ---

_BYTES_PER_TOKEN = 4.0
_WIDE_BYTES_PER_TOKEN = 3.0  # two-byte scripts: Cyrillic, Greek, Arabic, accented letters
_CJK_BYTES_PER_TOKEN = 2.0  # three bytes and more: Chinese, Japanese, Korean, Indic, emoji
_JSON_BYTES_PER_TOKEN = 3.5
_MESSAGE_TOKENS = 4
_REPLY_TOKENS = 3
_IMAGE_TOKENS = 765
_LOW_IMAGE_TOKENS = 85

_MOST_ITEMS = 1024  # more are not looked at one by one
_MOST_PARTS = 128  # of one message
_SLICE = 512
_SLICES = 8

_BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "document"))
_TEXT_FIELDS = ("prompt", "input", "system", "instructions")
_MEDIA = frozenset(("inlineData", "inline_data", "fileData", "file_data"))
_JSON_FIELDS = ("tools", "functions", "response_format", "output_config")


def estimate_input_tokens(body: bytes, parsed: dict[str, Any], count: Count | None = None) -> int:
    """Input tokens of a request of any language; at least 1. `parsed` is `body`, parsed.

    `count` is a tokenizer: the tokens of a text. Without one, texts are judged by their length and script.
    """
    count = count or text_tokens
    tokens = 0.0
    messages = parsed.get("messages")
    if messages is not None:
        tokens = _content_tokens(messages, body, count) + _REPLY_TOKENS
    if "contents" in parsed:
        tokens += _contents_tokens(parsed["contents"], body, count)
        tokens += _contents_tokens([parsed.get("systemInstruction")], body, count)
    for field in _TEXT_FIELDS:
        if field in parsed:
            tokens += _content_tokens(parsed[field], body, count)
    for field in _JSON_FIELDS:
        if field in parsed:
            tokens += _json_bytes(parsed[field], body) / _JSON_BYTES_PER_TOKEN
    return ceil(tokens) or _body_tokens(body) or 1


def estimate_large(body: bytes, data_bytes: int, data_strings: int) -> int:
    """Input tokens of a body that is not parsed, by its length and script; at least 1.

    `data_bytes` of it are Base64, in `data_strings` strings: each is taken for a picture, whose bytes say nothing.
    """
    text = _body_tokens(body) * (len(body) - data_bytes) / len(body)
    return ceil(text + data_strings * _IMAGE_TOKENS) or 1


def _content_tokens(content: object, body: bytes, count: Count) -> float:
    """Tokens of a text, or of a list of texts, messages, parts or token numbers, in any mixture."""
    if type(content) is str:
        return count(content)
    if type(content) is not list or not content:
        return 0.0
    if type(content[0]) is int:
        return len(content)
    if len(content) > _MOST_ITEMS:
        # Of very many small things token numbers are counted, everything else goes by the size of the body.
        if type(content[0]) is list:
            return sum([len(item) for item in content if type(item) is list])
        return _body_tokens(body)
    tokens = 0.0
    for item in content:
        kind = type(item)
        if kind is dict:
            text = item.get("content")
            if count is text_tokens and type(text) is str and text.isascii() and "tool_calls" not in item:
                tokens += _MESSAGE_TOKENS + len(text) / _BYTES_PER_TOKEN  # most messages, without a call for each
            else:
                tokens += _item_tokens(item, count)
        elif kind is str:
            tokens += count(item)
        elif kind is list:
            tokens += len(item)
    return tokens


def _contents_tokens(contents: object, body: bytes, count: Count) -> float:
    """Tokens of the contents of Gemini's: a list of parts each."""
    if type(contents) is not list or len(contents) > _MOST_ITEMS:
        return _body_tokens(body)
    return sum([_content_of_parts(one.get("parts"), count) for one in contents if type(one) is dict])


def _content_of_parts(parts: object, count: Count) -> float:
    if type(parts) is not list:
        return 0.0
    tokens = 1.0 * _MESSAGE_TOKENS
    for part in parts[:_MOST_PARTS]:
        text = part.get("text") if type(part) is dict else None
        if type(text) is str:
            tokens += count(text)
        elif type(part) is dict and not _MEDIA.isdisjoint(part):
            tokens += _IMAGE_TOKENS
        else:
            tokens += _json_bytes(part, b"") / _JSON_BYTES_PER_TOKEN
    return tokens


def _item_tokens(item: dict[str, Any], count: Count) -> float:
    """Tokens of a message or of one part of its content."""
    content = item.get("content")
    if type(content) is str:
        tokens = _MESSAGE_TOKENS + count(content)
    elif content is not None:
        tokens = _MESSAGE_TOKENS + _parts_tokens(content, count)
    else:
        tokens = _part_tokens(item, count)
    if "tool_calls" in item:
        tokens += _calls_tokens(item["tool_calls"], count)
    return tokens


def _parts_tokens(parts: object, count: Count) -> float:
    if type(parts) is not list or not parts:
        return 0.0
    sample = parts[:: 1 + (len(parts) - 1) // _MOST_PARTS]
    return sum([_part_tokens(part, count) for part in sample if type(part) is dict]) * len(parts) / len(sample)


def _calls_tokens(calls: object, count: Count) -> float:
    if type(calls) is not list:
        return 0.0
    functions = [call.get("function") for call in calls[:_MOST_PARTS] if type(call) is dict]
    return sum([_MESSAGE_TOKENS + _part_tokens(function, count) for function in functions if type(function) is dict])


def _part_tokens(part: dict[str, Any], count: Count) -> float:
    """A text by its length, a picture (or sound, or file) by its detail; its bytes say nothing about its tokens."""
    for field in ("text", "output", "arguments"):
        text = part.get(field)
        if type(text) is str:
            return count(text)
    kind = part.get("type")
    if type(kind) is str and kind in _BLOCKS:
        return _block_tokens(part, count)
    if type(kind) is not str or not ("image" in kind or "audio" in kind or "file" in kind):
        return _MESSAGE_TOKENS
    image = part.get("image_url")
    detail = image.get("detail") if type(image) is dict else part.get("detail")
    return _LOW_IMAGE_TOKENS if detail == "low" else _IMAGE_TOKENS


def _block_tokens(block: dict[str, Any], count: Count) -> float:
    """Tokens of a block that Messages alone have: a tool's call or result, a thought, a document."""
    source = block.get("source")
    source = source if type(source) is dict else {}
    if block["type"] == "document" and source.get("type") not in ("text", "content"):
        return _IMAGE_TOKENS
    tokens = 1.0 * _MESSAGE_TOKENS
    for text in (block.get("content"), block.get("thinking"), source.get("data"), source.get("content")):
        if type(text) is str:
            tokens += count(text)
        elif type(text) is list:  # what stands in these is not followed deeper
            inner = [part for part in text[:_MOST_PARTS] if type(part) is dict and str(part.get("type")) not in _BLOCKS]
            tokens += sum([_part_tokens(part, count) for part in inner])
    if "input" in block:
        tokens += _json_bytes(block["input"], b"") / _JSON_BYTES_PER_TOKEN
    return tokens


def text_tokens(text: str) -> float:
    """Tokens of a text, by its length and script."""
    if text.isascii():  # known without looking: strings remember it
        return len(text) / _BYTES_PER_TOKEN
    chars = len(text)
    if chars <= 2 * _SLICES * _SLICE:
        return _script_tokens(text)
    step = (chars - _SLICE) // (_SLICES - 1)
    sample = "".join([text[start : start + _SLICE] for start in range(0, step * _SLICES, step)])
    return _script_tokens(sample) * chars / len(sample)


def _script_tokens(text: str) -> float:
    """ASCII by four bytes to a token; the rest by how many bytes its characters take."""
    ascii_bytes = len(text.encode("ascii", "ignore"))
    wide_bytes = len(text.encode("utf-8", "surrogatepass")) - ascii_bytes
    is_cjk = wide_bytes >= 2.5 * (len(text) - ascii_bytes)
    return ascii_bytes / _BYTES_PER_TOKEN + wide_bytes / (_CJK_BYTES_PER_TOKEN if is_cjk else _WIDE_BYTES_PER_TOKEN)


def _json_bytes(value: object, body: bytes) -> int:
    """The size of a part of the body. Nested too deep to be written again: at most that of the body."""
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return len(body)


def _body_tokens(body: bytes) -> int:
    if len(body) <= 2 * _SLICES * _SLICE:
        return ceil(text_tokens(body.decode("utf-8", "replace")))
    step = (len(body) - _SLICE) // (_SLICES - 1)
    sample = b"".join([body[start : start + _SLICE] for start in range(0, step * _SLICES, step)])
    return ceil(text_tokens(sample.decode("utf-8", "replace")) * len(body) / len(sample))


ChargeRule = Literal["max", "sum", "input", "real"]
"""The rule of what a provider charges for a call when it lets the call in: `charge` in `estimate.py` says what each means."""
