"""deepeval: a judge's metric (G-Eval) over many test cases, at its own concurrency."""

import json
import os

os.environ["DEEPEVAL_TELEMETRY_OPT_OUT"] = "YES"

from deepeval import evaluate
from deepeval.evaluate import AsyncConfig, DisplayConfig, ErrorConfig
from deepeval.metrics import GEval
from deepeval.test_case import LLMTestCase, SingleTurnParams

ITEMS = int(os.environ["ITEMS"])

metric = GEval(
    name="Correctness",
    evaluation_steps=["Is the actual output a right answer to the input?"],
    evaluation_params=[SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT],
    model="gpt-4o-mini",
)
cases = [LLMTestCase(input=f"What is 2 + 2? Question {index}.", actual_output="4") for index in range(ITEMS)]
found = evaluate(
    cases,
    [metric],
    async_config=AsyncConfig(run_async=True),
    display_config=DisplayConfig(show_indicator=False, print_results=False),
    error_config=ErrorConfig(ignore_errors=True),
)
done = sum(all(data.score is not None for data in result.metrics_data) for result in found.test_results)
print(json.dumps({"done": done, "failed": ITEMS - done}))
