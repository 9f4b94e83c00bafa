"""lm-eval: a generation task on a local file by `local-chat-completions`, 32 at once."""

import json
import os
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

ITEMS = int(os.environ["ITEMS"])

folder = Path.cwd() / "tasks"
folder.mkdir()
rows = [json.dumps({"question": f"What is 2 + 2? Question {index}.", "answer": "4"}) for index in range(ITEMS)]
(folder / "sums.jsonl").write_text("\n".join(rows))
(folder / "sums.yaml").write_text(f"""
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder / "sums.jsonl"}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{max_gen_toks: 50, until: ["\\n"]}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
""")
results = lm_eval.simple_evaluate(
    model="local-chat-completions",
    model_args={
        "model": "gpt-4o-mini",
        "base_url": f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        "num_concurrent": 32,
    },
    tasks=["sums"],
    task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    apply_chat_template=True,
)
done = sum(bool(sample["resps"][0][0]) for sample in results["samples"]["sums"])
print(json.dumps({"done": done, "failed": ITEMS - done}))
