"""crewai: a crew of one agent and one task, `kickoff_for_each_async` over many inputs."""

import asyncio
import json
import os

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = os.environ["CREWAI_TESTING"] = "true"

from crewai import LLM, Agent, Crew, Task

ITEMS = int(os.environ["ITEMS"])


async def main() -> None:
    agent = Agent(
        role="Writer", goal="Write sentences.", backstory="You write.", llm=LLM("openai/gpt-4o-mini", max_tokens=50)
    )
    task = Task(description="Write sentence {index}.", expected_output="A sentence.", agent=agent)
    crew = Crew(agents=[agent], tasks=[task])
    outputs = await crew.kickoff_for_each_async([{"index": index} for index in range(ITEMS)])
    done = sum(bool(output.raw) for output in outputs)
    print(json.dumps({"done": done, "failed": ITEMS - done}))


asyncio.run(main())
