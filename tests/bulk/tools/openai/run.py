"""The openai SDK at its defaults: all items at once, 100 of them in flight."""

import asyncio
import json
import os

from openai import AsyncOpenAI

ITEMS = int(os.environ["ITEMS"])


async def main() -> None:
    client, places = AsyncOpenAI(), asyncio.Semaphore(100)

    async def one(index: int) -> bool:
        async with places:
            prompt = f"What is 2 + 2? Question {index}."
            answer = await client.chat.completions.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": prompt}], max_tokens=50
            )
            return bool(answer.choices[0].message.content)

    results = await asyncio.gather(*(one(index) for index in range(ITEMS)), return_exceptions=True)
    done = sum(result is True for result in results)
    print(json.dumps({"done": done, "failed": ITEMS - done}))


asyncio.run(main())
