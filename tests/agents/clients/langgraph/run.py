"""LangGraph: its agent with a tool, over LangChain's models of OpenAI and Anthropic."""

import anthropic
import openai
import trials
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import tool as as_tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

calls: list[tuple[str, str]] = []


@as_tool
def get_weather(city: str, thread_id: str) -> str:
    """The weather."""
    calls.append((city, thread_id))
    return "sunny"


def models(model: str) -> list[BaseChatModel]:
    at = {"model": model, "api_key": trials.KEY}
    return [
        ChatOpenAI(base_url=f"{trials.URL}/v1", stream_usage=True, **at),
        ChatOpenAI(base_url=f"{trials.URL}/v1", use_responses_api=True, **at),
        ChatAnthropic(base_url=trials.URL, max_tokens=1000, **at),
    ]


def graph_of(model: BaseChatModel):
    """Returns the loop of a model and its tools."""
    bound = model.bind_tools([get_weather])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([get_weather]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def tool() -> None:
    for model in models(trials.MODEL):
        calls.clear()
        state = graph_of(model).invoke({"messages": [("user", trials.ASK_FOR_TOOL)]})
        trials.is_story(state["messages"][-1].text)
        assert len(calls) == 1, calls


def stream() -> None:
    for model in models(trials.MODEL):
        trials.is_stream([chunk.text for chunk in model.stream(trials.ASK)])


def error() -> None:
    for model in models(trials.LONG_MODEL):
        asked = {"messages": [("user", trials.ASK)]}
        kinds = (openai.BadRequestError, anthropic.BadRequestError)
        problem = trials.refused(lambda model=model, asked=asked: graph_of(model).invoke(asked), kinds)
        trials.is_too_long(problem, problem.status_code)


trials.run(tool=tool, stream=stream, error=error)
