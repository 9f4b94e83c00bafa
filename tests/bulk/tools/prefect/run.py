"""Prefect: a flow that maps a task with retries over many items, each call a step; killed, it is run again."""

import json
import os

os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "120"  # on a busy machine

from openai import OpenAI
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner

ITEMS = int(os.environ["ITEMS"])
client = OpenAI(default_headers={"x-gateway-run": "bulk"})


@task(retries=3, retry_delay_seconds=2)
def ask(index: int) -> str:
    answer = client.chat.completions.create(
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": f"What is 2 + 2? Question {index}."}],
        max_tokens=50,
        extra_headers={"x-gateway-step": f"ask[{index}]"},
    )
    return answer.choices[0].message.content or ""


@flow(task_runner=ThreadPoolTaskRunner(max_workers=50))
def bulk() -> int:
    futures = ask.map(list(range(ITEMS)))
    futures.wait()
    return sum(future.state.is_completed() for future in futures)


if __name__ == "__main__":
    done = bulk()
    print(json.dumps({"done": done, "failed": ITEMS - done}))
