"""distilabel: a pipeline that generates a text for each instruction, in its own batches of 50."""

import json
import os

from distilabel.models import OpenAILLM
from distilabel.pipeline import Pipeline
from distilabel.steps import LoadDataFromDicts
from distilabel.steps.tasks import TextGeneration

ITEMS = int(os.environ["ITEMS"])


def main() -> None:
    with Pipeline(name="bulk") as pipeline:
        load = LoadDataFromDicts(data=[{"instruction": f"Write sentence {index}."} for index in range(ITEMS)])
        generate = TextGeneration(llm=OpenAILLM(model="gpt-4o-mini", generation_kwargs={"max_new_tokens": 50}))
        load >> generate
    rows = pipeline.run(use_cache=False)["default"]["train"]
    done = sum(bool(row["generation"]) for row in rows)
    print(json.dumps({"done": done, "failed": ITEMS - done}))


if __name__ == "__main__":
    main()
