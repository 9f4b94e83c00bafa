"""The options of a chat completion as Messages have them: how much it may say, how it thinks, samples and is formatted.

What a model takes is told by its facts and by nothing else. Each option is settled once, with what is lost of it, so that
the request and the report of its gaps cannot differ. Nothing here raises: a value without sense goes on, and is refused there.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.types.words import Gap, How
from gateway.dialects.anthropic.out_request.tools.tools import Told, is_filtered, tools_and_choice
from gateway.dialects.anthropic.out_thoughts.signed_turns import NOTHING, recalled
from gateway.dialects.anthropic.out_thoughts.thoughts import has_foreign, lacks_thoughts
from gateway.dialects.base.base import Json, ModelFacts, ServerFacts, object_of, objects, text_of
from gateway.dialects.schema_tools.schema import asked_form

UNKNOWN_OUTPUT: Final = 8192
"""The most tokens of an answer that are asked for where neither the caller nor the model's facts say it."""
BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 10_000, "high": 16_384, "xhigh": 32_768, "max": 32_768}
"""The tokens for thinking by effort, for models that are told a number."""
_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_LEAST_TOP_P: Final = 0.95
"""A model that thinks takes no lower `top_p`."""
_TIERS: Final = {"auto": "auto", "default": "standard_only"}


class ChatOptions:
    """All fields of a request but its messages, and what was lost in them."""

    def __init__(self, body: Json, facts: ServerFacts) -> None:
        self.fields: Json = {"model": body.get("model"), "max_tokens": _most_tokens(body, facts.model)}
        self.gaps: list[Gap] = []
        self.instruction: str | None = None
        """What has to stand at the end of the instructions."""
        self._body, self._facts, self._model = body, facts, facts.model
        self.recalled = recalled(body, facts)
        """What is remembered of turns that came back without their thoughts."""
        self._think()
        self._sample()
        self._form()
        thinks_by_budget = object_of(self.fields.get("thinking")).get("type") == "enabled"
        tools: Told = tools_and_choice(body, facts, thinks_by_budget=thinks_by_budget)
        self.fields |= tools.fields
        self.gaps += tools.gaps
        self._address()

    @property
    def keeps_thoughts(self) -> bool:
        """Returns whether thoughts of former turns can go back: some models bind them to all that stood before them."""
        if not self._model.binds_thinking:
            return True
        if self.instruction is not None or is_filtered(self._body) or self.recalled.has_foreign:
            return False
        return not any(has_foreign(message) for message in objects(self._body.get("messages")))

    def _think(self) -> None:
        asked, model = self._body.get("reasoning_effort"), self._model
        own = self._body.get("thinking")
        if isinstance(own, dict) and own.get("type") == "enabled" and self._lacks_thoughts("thinking"):
            own = None
        if isinstance(own, dict):
            self.fields["thinking"] = own
            if own.get("type") == "disabled":
                self.recalled = NOTHING
            if asked is None:
                return
            if asked in model.efforts and own.get("type") != "disabled":
                self._effort(asked)
            else:
                self._lose("reasoning_effort", How.DROPPED, "the request says by itself how the model is to think")
        elif asked is None:
            return
        elif asked == "none":
            self._think_nothing()
        elif asked not in _EFFORTS:
            self._lose("reasoning_effort", How.DROPPED, "there is no such effort")
        elif model.thinking == "none":
            self._lose("reasoning_effort", How.DROPPED, "the model does not think")
        elif model.thinking == "budget":
            self._think_by_budget(asked)
        else:
            self.fields["thinking"] = {"type": "adaptive"}
            if model.efforts:
                self._effort(_nearest(asked, model.efforts))
            if asked not in model.efforts:
                self._lose("reasoning_effort", How.APPROXIMATED, "the model has other efforts")

    def _think_nothing(self) -> None:
        if self._model.thinking == "none":
            return
        if self._model.thinking_off == "never":
            if self._model.efforts:
                self._effort(self._model.efforts[0])
            self._lose("reasoning_effort", How.APPROXIMATED, "the model always thinks: it thinks the least that it can")
            return
        self.fields["thinking"] = {"type": self._model.thinking_off}
        self.recalled = NOTHING if self._model.thinking_off == "disabled" else self.recalled
        if self._model.thinking_off != "disabled":
            self._lose("reasoning_effort", How.APPROXIMATED, "the model still thinks between calls of tools")

    def _lacks_thoughts(self, name: str) -> bool:
        """Returns whether the model cannot think by a budget now, as the field of this name asks it to."""
        found = lacks_thoughts(self._body.get("messages"), self.recalled.contents)
        if found:
            why = "the model does not go on thinking where its thoughts before the calls did not come back"
            self._lose(name, How.DROPPED, why)
        return found

    def _think_by_budget(self, effort: str) -> None:
        if self._lacks_thoughts("reasoning_effort"):
            return
        budget, most = BUDGETS[effort], self.fields["max_tokens"]
        if type(most) is int and most <= budget:
            raised = min(most + budget, self._model.max_output or most + budget)
            if raised <= budget:
                self._lose("reasoning_effort", How.DROPPED, "the model's answers are too short for so much thinking")
                return
            self.fields["max_tokens"] = raised
            if (name := _name_of_bound(self._body)) is not None:
                self._lose(name, How.APPROXIMATED, "there is room for the thinking besides")
        self.fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
        self._lose("reasoning_effort", How.APPROXIMATED, "it becomes a number of tokens for thinking")

    def _effort(self, effort: str) -> None:
        self.fields.setdefault("output_config", {})["effort"] = effort

    def _sample(self) -> None:
        temperature, top_p, top_k = (self._body.get(name) for name in ("temperature", "top_p", "top_k"))
        how = text_of(object_of(self.fields.get("thinking")).get("type"))
        thinks = how in ("enabled", "adaptive") or (self._model.thinks_unasked and how != "disabled")
        if temperature == 1 and not isinstance(temperature, bool):  # which is what holds without it
            temperature = None
        if top_p == 1 and not isinstance(top_p, bool):
            top_p = None
        why = "the model is not told how to sample" if not self._model.sampling else "not while the model thinks"
        if temperature is not None:
            if thinks or not self._model.sampling:
                self._lose("temperature", How.DROPPED, why)
            elif isinstance(temperature, int | float) and temperature > 1:
                self.fields["temperature"] = 1.0
                self._lose("temperature", How.APPROXIMATED, "the highest temperature is 1")
            else:
                self.fields["temperature"] = temperature
        if top_p is not None:
            is_kept = not thinks or (isinstance(top_p, int | float) and top_p >= _LEAST_TOP_P)
            if not self._model.sampling or not is_kept:
                self._lose("top_p", How.DROPPED, why)
            elif "temperature" in self.fields:
                self._lose("top_p", How.DROPPED, "the model takes one of temperature and top_p")
            else:
                self.fields["top_p"] = top_p
        if top_k is not None:
            if thinks or not self._model.sampling:
                self._lose("top_k", How.DROPPED, why)
            else:
                self.fields["top_k"] = top_k

    def _form(self) -> None:
        form = asked_form(self._body.get("response_format"), self._facts, has_description=False)
        self.instruction = form.instruction
        self.gaps += form.gaps
        if form.schema is not None:
            self.fields.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": form.schema}

    def _address(self) -> None:
        """Settles what is said about the call: who asks, where it is to end, how it is served."""
        body = self._body
        stop = body.get("stop")
        if stop:
            given = [stop] if isinstance(stop, str) else stop
            kept = (
                [one for one in given if not isinstance(one, str) or one.strip()] if isinstance(given, list) else given
            )
            if kept != given:
                self._lose("stop", How.DROPPED, "the target does not stop at white space")
            if kept:
                self.fields["stop_sequences"] = kept
        user, former = body.get("safety_identifier"), body.get("user")
        if user is not None and former is not None and user != former:
            self._lose("user", How.DROPPED, "the target is told one identifier")
        if (named := former if user is None else user) is not None:
            self.fields["metadata"] = {"user_id": named}
        if (tier := body.get("service_tier")) is not None:
            if (known := _TIERS.get(text_of(tier))) is not None:
                self.fields["service_tier"] = known
            else:
                self._lose("service_tier", How.DROPPED, "the target has no such tier")
        if isinstance(mark := body.get("cache_control"), dict):  # for the cache, of all that is said
            self.fields["cache_control"] = mark
        if body.get("stream"):
            self.fields["stream"] = True

    def _lose(self, name: str, how: How, why: str) -> None:
        self.gaps.append(Gap(name, how, why))


def _name_of_bound(body: Json) -> str | None:
    return next((name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None), None)


def _most_tokens(body: Json, model: ModelFacts) -> Any:
    """Returns how long the answer may be, which the target has to be told: as long as the model can, if nobody says."""
    name = _name_of_bound(body)
    if name is None:
        return model.max_output or UNKNOWN_OUTPUT
    most = body[name]
    return min(most, model.max_output) if type(most) is int and model.max_output else most


def _nearest(effort: str, known: tuple[str, ...]) -> str:
    """Returns the effort, or the next higher one that the model knows, or else its highest."""
    higher = _EFFORTS[_EFFORTS.index(effort) :]
    return next((one for one in higher if one in known), known[-1])
