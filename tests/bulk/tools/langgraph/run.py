"""LangGraph: map and reduce over many items with a checkpointer on disk, each call a step; killed, it is run again."""

import json
import operator
import os
import sqlite3
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send
from openai import OpenAIError

ITEMS = int(os.environ["ITEMS"])
model = ChatOpenAI(model="gpt-4o-mini", max_tokens=50, default_headers={"x-gateway-run": "bulk"})


class State(TypedDict):
    answers: Annotated[list[str], operator.add]


def spread(_state: State) -> list[Send]:
    return [Send("ask", {"index": index}) for index in range(ITEMS)]


def ask(item: dict[str, int]) -> State:
    index = item["index"]
    answer = model.invoke(f"What is 2 + 2? Question {index}.", extra_headers={"x-gateway-step": f"ask[{index}]"})
    return {"answers": [str(answer.content)]}


graph = StateGraph(State)
graph.add_node("ask", ask, retry_policy=RetryPolicy(max_attempts=5))
graph.add_conditional_edges(START, spread, ["ask"])
graph.add_edge("ask", END)
program = graph.compile(checkpointer=SqliteSaver(sqlite3.connect("graph.db", check_same_thread=False)))
config = {"configurable": {"thread_id": "bulk"}, "max_concurrency": 50}
is_resumed = bool(program.get_state(config).next)
answers: list[str] = []
for _ in range(10):  # its user starts it again when it has failed
    try:
        answers = program.invoke(None if is_resumed else {"answers": []}, config)["answers"]
        break
    except OpenAIError as error:
        is_resumed = True
        print(f"failed: {error}")
done = sum(bool(answer) for answer in answers)
print(json.dumps({"done": done, "failed": ITEMS - done}))
