"""LangChain: `batch` over a chain of prompt, model and parser, 50 threads."""

import json
import os

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

ITEMS = int(os.environ["ITEMS"])

prompt = ChatPromptTemplate.from_messages([("system", "You summarise."), ("user", "Summarise text {index}.")])
chain = prompt | ChatOpenAI(model="gpt-4o-mini", max_tokens=50) | StrOutputParser()
inputs = [{"index": index} for index in range(ITEMS)]
answers = chain.batch(inputs, config={"max_concurrency": 50}, return_exceptions=True)
done = sum(isinstance(answer, str) for answer in answers)
print(json.dumps({"done": done, "failed": ITEMS - done}))
