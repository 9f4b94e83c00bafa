"""curator: a dataset made by one call a row, paced by itself."""

import json
import os
from importlib.resources import files

os.environ["TIKTOKEN_CACHE_DIR"] = str(files("litellm") / "litellm_core_utils" / "tokenizers")  # else it is downloaded
os.environ["TELEMETRY_ENABLED"] = "false"
os.environ["CURATOR_DISABLE_RICH_DISPLAY"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from bespokelabs import curator
from datasets import Dataset

ITEMS = int(os.environ["ITEMS"])


class Writer(curator.LLM):
    def prompt(self, row: dict) -> str:
        return f"Write sentence {row['index']}."

    def parse(self, row: dict, response: str) -> dict:
        return {"index": row["index"], "text": response}


def main() -> None:
    writer = Writer(
        model_name="gpt-4o-mini",
        backend="openai",
        backend_params={"base_url": os.environ["OPENAI_BASE_URL"]},
        generation_params={"max_tokens": 50},
    )
    made = writer(Dataset.from_list([{"index": index} for index in range(ITEMS)]))
    rows = getattr(made, "dataset", made)
    done = sum(bool(row["text"]) for row in rows)
    print(json.dumps({"done": done, "failed": ITEMS - done}))


if __name__ == "__main__":
    main()
