"""LiteLLM's library: a classification of many texts by `acompletion`, 100 in flight."""

import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

litellm.telemetry = False
ITEMS = int(os.environ["ITEMS"])


async def main() -> None:
    places = asyncio.Semaphore(100)

    async def one(index: int) -> bool:
        async with places:
            answer = await litellm.acompletion(
                model="openai/gpt-4o-mini",
                messages=[{"role": "user", "content": f"Is text {index} about a cat? Answer yes or no."}],
                max_tokens=50,
            )
            return bool(answer.choices[0].message.content)

    results = await asyncio.gather(*(one(index) for index in range(ITEMS)), return_exceptions=True)
    done = sum(result is True for result in results)
    print(json.dumps({"done": done, "failed": ITEMS - done}))


asyncio.run(main())
