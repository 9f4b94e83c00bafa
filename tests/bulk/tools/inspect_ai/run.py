"""inspect_ai: an evaluation of many samples, matched by a scorer, at its own concurrency."""

import json
import os

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

ITEMS = int(os.environ["ITEMS"])

samples = [Sample(input=f"What is 2 + 2? Question {index}.", target="4") for index in range(ITEMS)]
task = Task(dataset=MemoryDataset(samples), solver=generate(), scorer=includes())
logs = eval(task, model="openai/gpt-4o-mini", max_tokens=50, display="none", fail_on_error=False)
done = sum(bool(sample.scores) and sample.error is None for sample in logs[0].samples or [])
print(json.dumps({"done": done, "failed": ITEMS - done}))
