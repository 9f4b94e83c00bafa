"""LightRAG: documents into a graph, by extractions and embeddings, at its own concurrency."""

import asyncio
import json
import os

from lightrag import LightRAG
from lightrag.base import DocStatus
from lightrag.llm.openai import gpt_4o_mini_complete, openai_embed
from lightrag.utils import EmbeddingFunc, Tokenizer

ITEMS = int(os.environ["ITEMS"])


class Letters:
    """Its own tokenizer downloads a vocabulary."""

    def encode(self, content: str) -> list[int]:
        return [ord(letter) for letter in content]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


async def main() -> None:
    embed = EmbeddingFunc(embedding_dim=32, func=openai_embed.func)
    rag = LightRAG(
        working_dir="rag",
        llm_model_func=gpt_4o_mini_complete,
        embedding_func=embed,
        tokenizer=Tokenizer("letters", Letters()),
    )
    await rag.initialize_storages()
    await rag.ainsert(
        [f"Document {index}: Ada Lovelace works with Charles Babbage in London." for index in range(ITEMS)]
    )
    done = len(await rag.doc_status.get_docs_by_statuses([DocStatus.PROCESSED]))
    await rag.finalize_storages()
    print(json.dumps({"done": done, "failed": ITEMS - done}))


asyncio.run(main())
