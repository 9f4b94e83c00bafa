"""instructor: a typed record out of each text, 100 in flight."""

import asyncio
import json
import os

import instructor
from openai import AsyncOpenAI
from pydantic import BaseModel

ITEMS = int(os.environ["ITEMS"])


class Person(BaseModel):
    name: str
    age: int


async def main() -> None:
    client, places = instructor.from_openai(AsyncOpenAI()), asyncio.Semaphore(100)

    async def one(index: int) -> bool:
        async with places:
            person = await client.chat.completions.create(
                model="gpt-4o-mini",
                response_model=Person,
                messages=[{"role": "user", "content": f"Person {index} is one year old and is called Ada."}],
                max_tokens=50,
            )
            return bool(person.name)

    results = await asyncio.gather(*(one(index) for index in range(ITEMS)), return_exceptions=True)
    done = sum(result is True for result in results)
    print(json.dumps({"done": done, "failed": ITEMS - done}))


asyncio.run(main())
