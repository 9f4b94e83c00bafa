"""aider, by itself: LiteLLM in chat completions and in Messages. It has no tools: it reads edits out of what is answered."""

import os
from pathlib import Path

import trials

VARIABLES = {
    "OPENAI_API_BASE": f"{trials.URL}/v1",
    "OPENAI_API_KEY": trials.KEY,
    "ANTHROPIC_API_BASE": trials.URL,
    "ANTHROPIC_API_KEY": trials.KEY,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
OPTIONS = ("--no-git", "--yes-always", "--no-check-update", "--no-analytics", "--no-show-model-warnings", "--no-pretty")


def output_of(model: str) -> str:
    return trials.output_of("aider", "--model", model, *OPTIONS, "--message", trials.ASK, **VARIABLES)[1]


def stream() -> None:
    for language in ("openai", "anthropic"):
        trials.is_story(output_of(f"{language}/{trials.MODEL}"))


def error() -> None:
    trials.is_too_long(" ".join(output_of(f"anthropic/{trials.LONG_MODEL}").split()))  # it breaks lines


prices = Path(os.environ["HOME"]) / ".aider" / "caches" / "model_prices_and_context_window.json"
prices.parent.mkdir(parents=True)
prices.write_text("{}")  # else it looks for them outside, and waits
trials.run(stream=stream, error=error)
