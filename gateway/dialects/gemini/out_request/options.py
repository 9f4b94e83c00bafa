"""The options of a chat completion as generateContent has them: how much it may say, how it thinks, samples and is formatted.

What a model takes is told by its facts and by nothing else. Each option is settled once, with what is lost of it, so that
the request and the report of its gaps cannot differ. Nothing here raises: a value without sense goes on, and is refused there.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from gateway.core.types.words import Gap, How
from gateway.dialects.base.base import MOST_NAMED, Json, ServerFacts, object_of, strings, text_of
from gateway.dialects.gemini.in_answer.names import camel
from gateway.dialects.gemini.out_request.plain_schema import plain_schema
from gateway.dialects.gemini.out_request.tools import has_tools, tools_and_choice
from gateway.dialects.schema_tools.schema import JSON_IN_WORDS, SCHEMA_IN_WORDS, described

BUDGETS: Final = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 24_576, "max": 24_576}
"""The tokens for thinking by effort, for models that are told a number. Source: Gemini API, OpenAI compatibility."""
_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_MOST_STOPS: Final = 5
_SEEDS: Final = range(-(2**31), 2**31)
_JSON_TYPE: Final = "application/json"
_LABEL: Final = re.compile(r"[\w-]{0,63}")
_GOOGLES: Final = {"cached_content": "cachedContent", "safety_settings": "safetySettings"}
"""What Google's own chat completions know besides, and how generateContent has it. Source: Gemini API, OpenAI compatibility."""
_PLAIN: Final = (
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
)


class GenerateOptions:
    """All fields of a request but its contents and instructions, and what was lost in them."""

    def __init__(self, body: Json, facts: ServerFacts) -> None:
        self.gaps: list[Gap] = []
        self.instruction: str | None = None
        """What has to stand at the end of the instructions."""
        self._body, self._facts, self._model = body, facts, facts.model
        self._config: Json = {}
        self._googles: Json = {}
        self._bound()
        self._think()
        self._sample()
        self._form()
        self._tell_probabilities()
        self._take_googles()
        tools = tools_and_choice(body)
        self.gaps += tools.gaps
        self.fields: Json = tools.fields | self._googles
        if self._config:
            self.fields["generationConfig"] = self._config
        self._address()

    def _bound(self) -> None:
        """Settles how long the answer may be, and how many there are."""
        body = self._body
        most = body.get("max_completion_tokens")
        most = body.get("max_tokens") if most is None else most
        if most is not None:
            highest = self._model.max_output
            self._config["maxOutputTokens"] = min(most, highest) if type(most) is int and highest else most
        if (count := body.get("n")) is not None and count != 1:
            self._config["candidateCount"] = count
        stop = body.get("stop")
        if stop:
            given = [stop] if isinstance(stop, str) else stop
            if isinstance(given, list) and len(given) > _MOST_STOPS:
                given = given[:_MOST_STOPS]
                self._lose("stop", How.DROPPED, f"the target stops at the first {_MOST_STOPS}")
            self._config["stopSequences"] = given

    def _think(self) -> None:
        asked, reasoning = self._body.get("reasoning_effort"), object_of(self._body.get("reasoning"))
        name = "reasoning_effort"
        if asked is None and reasoning:
            asked, name = reasoning.get("effort"), "reasoning"
            if asked is None and reasoning.get("enabled") is False:
                asked = "none"
        budget = reasoning.get("max_tokens")
        if asked is None and budget is None and not reasoning:
            return
        told: Json = {}
        if asked == "none":
            self._think_nothing(name, told)
        elif self._model.thinking == "none":
            self._lose(name, How.DROPPED, "the model does not think")
            return
        elif asked is None and budget is not None and self._model.thinking == "budget":
            told["thinkingBudget"] = budget
        elif asked is None:
            if budget is not None:
                self._lose(name, How.DROPPED, "the model is told no number of tokens for thinking")
        elif text_of(asked) not in _EFFORTS:
            self._lose(name, How.DROPPED, "there is no such effort")
            return
        elif self._model.thinking == "budget":
            told["thinkingBudget"] = BUDGETS[asked]
            self._lose(name, How.APPROXIMATED, "it becomes a number of tokens for thinking")
        elif self._model.efforts:
            level = _nearest(asked, self._model.efforts)
            told["thinkingLevel"] = level.upper()
            if level != asked:
                self._lose(name, How.APPROXIMATED, "the model has other levels")
        if asked != "none" and reasoning.get("exclude") is not True:
            told["includeThoughts"] = True
        if told:
            self._config["thinkingConfig"] = told

    def _think_nothing(self, name: str, told: Json) -> None:
        model = self._model
        if model.thinking == "none":
            return
        if model.thinking_off != "never":
            told["thinkingBudget"] = 0
            return
        if model.thinking == "budget":
            told["thinkingBudget"] = BUDGETS["minimal"]
        elif model.efforts:
            told["thinkingLevel"] = model.efforts[0].upper()
        self._lose(name, How.APPROXIMATED, "the model always thinks: it thinks the least that it can")

    def _sample(self) -> None:
        body, config = self._body, self._config
        for name, ours in (("temperature", "temperature"), *_PLAIN):
            if (value := body.get(name)) is None:
                continue
            if self._model.sampling or name.endswith("penalty"):
                config[ours] = value
            else:
                self._lose(name, How.DROPPED, "the model is not told how to sample")
        if (seed := body.get("seed")) is not None:
            if isinstance(seed, int) and seed not in _SEEDS:
                self._lose("seed", How.DROPPED, "the target takes 32 bits")
            else:
                config["seed"] = seed

    def _form(self) -> None:
        asked = self._body.get("response_format")
        kind = text_of(asked.get("type")) if isinstance(asked, dict) else "text"
        schema = described(object_of(object_of(asked).get("json_schema"))) if kind == "json_schema" else None
        modalities = strings(self._body.get("modalities"))
        if "image" in modalities:
            self._config["responseModalities"] = [one.upper() for one in modalities if one in ("text", "image")]
        if kind == "text":
            return
        if kind not in ("json_schema", "json_object"):
            self._lose(f"response_format.{kind}"[:MOST_NAMED], How.REFUSED, "the target has no such format")
            return
        why = self._why_no_json(schema)
        if why is None:
            self._config["responseMimeType"] = _JSON_TYPE
            if isinstance(schema, dict):
                self._config["responseJsonSchema"] = plain_schema(schema)
        elif self._facts.approximates or schema is None:
            told = "it is told in words, at the end of the instructions"
            self.instruction = JSON_IN_WORDS if schema is None else SCHEMA_IN_WORDS + orjson.dumps(schema).decode()
            self._lose(f"response_format.{kind}", How.APPROXIMATED, told)
        else:
            self._lose(f"response_format.{kind}", How.REFUSED, why)

    def _why_no_json(self, schema: Any) -> str | None:
        """Returns why the answer cannot be held to JSON; None: it can."""
        if isinstance(schema, dict) and not self._model.json_schema:
            return "the model answers by no schema"
        if has_tools(self._body) and not self._model.tools_with_schema:
            return "the model has no tools in a call whose answer has a form"
        return None

    def _tell_probabilities(self) -> None:
        for name in ("logprobs", "top_logprobs"):
            if not (value := self._body.get(name)):
                continue
            if not self._model.logprobs:
                self._lose(name, How.REFUSED, "the model tells no probabilities")
            elif name == "logprobs":
                self._config["responseLogprobs"] = True
            else:
                self._config["logprobs"] = value

    def _take_googles(self) -> None:
        """Takes what callers of Google's own chat completions say beyond OpenAI's fields."""
        extra, own = self._body.get("extra_body"), self._body.get("google")
        if isinstance(extra, dict):
            extra, own = {name: one for name, one in extra.items() if name != "google"}, extra.get("google", own)
        if extra or not isinstance(own, dict | None):
            self._lose("other", How.DROPPED, "the target has no such option")
        safety = self._body.get("safety_settings")
        for name, value in (object_of(own) | ({"safety_settings": safety} if safety else {})).items():
            if name == "thinking_config" and isinstance(value, dict):
                self._config["thinkingConfig"] = camel(value)
            elif name in _GOOGLES:
                self._googles[_GOOGLES[name]] = value
            else:
                self._lose("other", How.DROPPED, "the target has no such option")

    def _address(self) -> None:
        """Settles what is said about the call: how it is served, and what it is filed under."""
        tier = self._body.get("service_tier")
        if tier in ("flex", "priority"):
            self.fields["serviceTier"] = tier
        elif tier not in (None, "auto", "default"):
            self._lose("service_tier", How.DROPPED, "the target has no such tier")
        if metadata := self._body.get("metadata"):
            named = object_of(metadata) if self._facts.issuer == "vertex" else {}
            labels = {name: value for name, value in named.items() if name and _is_label(name) and _is_label(value)}
            if labels:
                self.fields["labels"] = labels
            if labels != metadata:
                self._lose("metadata", How.DROPPED, "the target files answers under no such label")

    def _lose(self, name: str, how: How, why: str) -> None:
        self.gaps.append(Gap(name, how, why))


def _is_label(value: Any) -> bool:
    return isinstance(value, str) and _LABEL.fullmatch(value) is not None and value == value.lower()


def _nearest(effort: str, known: tuple[str, ...]) -> str:
    """Returns the effort, or the next higher one that the model knows, or else its highest."""
    higher = _EFFORTS[_EFFORTS.index(effort) :]
    return next((one for one in higher if one in known), known[-1])
