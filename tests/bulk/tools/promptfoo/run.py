"""promptfoo: `promptfoo eval` of one prompt over many tests, each with an assertion, at its own concurrency."""

import json
import os
import subprocess
from pathlib import Path

ITEMS = int(os.environ["ITEMS"])

config = {
    "prompts": ["What is 2 + 2? Question {{index}}."],
    "providers": [{"id": "openai:chat:gpt-4o-mini", "config": {"max_tokens": 50}}],
    "tests": [{"vars": {"index": index}, "assert": [{"type": "contains", "value": "4"}]} for index in range(ITEMS)],
}
Path("promptfooconfig.json").write_text(json.dumps(config))
quiet = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
}
command = ["promptfoo", "eval", "-c", "promptfooconfig.json", "-o", "results.json", "--no-progress-bar", "--no-table"]
subprocess.run(command, env={**os.environ, **quiet}, check=False)  # its exit code tells of failed tests
results = json.loads(Path("results.json").read_text())["results"]["results"]
done = sum(bool(result["success"]) for result in results)
print(json.dumps({"done": done, "failed": ITEMS - done}))
