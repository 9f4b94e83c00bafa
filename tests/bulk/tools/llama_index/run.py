"""LlamaIndex: embeddings of 20 texts an item, in batches of 20, 10 at once."""

import asyncio
import json
import os

from llama_index.embeddings.openai import OpenAIEmbedding

ITEMS = int(os.environ["ITEMS"])
BATCH = 20


async def main() -> None:
    model = OpenAIEmbedding(model="text-embedding-3-small", embed_batch_size=BATCH, num_workers=10)
    texts = [f"The sentence number {index} is about a cat." for index in range(ITEMS * BATCH)]
    vectors = await model.aget_text_embedding_batch(texts)
    done = sum(bool(vector) for vector in vectors) // BATCH
    print(json.dumps({"done": done, "failed": ITEMS - done}))


asyncio.run(main())
