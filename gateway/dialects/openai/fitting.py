"""What a model at OpenAI's languages takes of what callers of other languages ask: how it draws, and how much it thinks.

The one place that decides it, for chat completions and Responses alike. Callers of OpenAI's own languages know its models, and
are not corrected.
"""

from __future__ import annotations

from typing import Final

from gateway.core.types import Gap, How
from gateway.dialects.base import Json, ModelFacts, ServerFacts, text_of

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All efforts, the least first."""
SAMPLING: Final = ("temperature", "top_p")
NOT_SAMPLED: Final = "the model takes none"


def effort_for(effort: str | None, model: ModelFacts) -> str | None:
    """Returns the effort of a model's that is nearest to this one and no more, if there is one; None: it is told none."""
    if effort is None or effort in model.efforts or not model.efforts:
        return effort if effort in model.efforts else None
    most = EFFORTS.index(effort) if effort in EFFORTS else len(EFFORTS)
    less = [name for name in model.efforts if name in EFFORTS and EFFORTS.index(name) <= most]
    return less[-1] if less else model.efforts[0]


def how_fitted(wanted: str | None, model: ModelFacts) -> How | None:
    """Returns what becomes of an effort; None: it is said as it was asked, or needs no word."""
    effort = effort_for(wanted, model)
    if effort == wanted or (wanted == "none" and effort is None and model.thinking == "none"):
        return None
    return How.DROPPED if effort is None else How.APPROXIMATED


def is_sampled(effort: str | None, facts: ServerFacts) -> bool:
    """Returns whether a model that is told this effort takes `temperature` and `top_p`.

    OpenAI's models that can be told not to think draw as they are told only then.
    """
    may_think = facts.takes_developer and "none" in facts.model.efforts
    return facts.model.sampling and not (may_think and effort not in (None, "none"))


def fitted(chat: Json, facts: ServerFacts) -> tuple[Json, list[Gap]]:
    """Returns a chat completion as its model takes it, and what was lost; itself where nothing was.

    Raises nothing.
    """
    wanted = text_of(chat.get("reasoning_effort")) or None
    effort, lost = effort_for(wanted, facts.model), list[Gap]()
    made = chat
    if effort != wanted:
        made = {name: value for name, value in chat.items() if name != "reasoning_effort"}
        made |= {"reasoning_effort": effort} if effort is not None else {}
    if (how := how_fitted(wanted, facts.model)) is not None:
        lost.append(Gap("reasoning_effort", how, "the model has no such effort"))
    for name in ("max_completion_tokens", "max_tokens"):
        most, highest = chat.get(name), facts.model.max_output
        if type(most) is int and highest is not None and most > highest:
            made = {**made, name: highest}
            lost.append(Gap(name, How.APPROXIMATED, f"the model answers with {highest} at most"))
    if not is_sampled(effort, facts):
        unsaid = [name for name in SAMPLING if chat.get(name) is not None]
        made = {name: value for name, value in made.items() if name not in unsaid} if unsaid else made
        lost += [Gap(name, How.DROPPED, NOT_SAMPLED) for name in unsaid if is_not_default(chat[name])]
    return made, lost


def is_not_default(value: object) -> bool:
    """Returns whether a way to draw says anything: 1 is what holds without it."""
    return value != 1 or value is True
