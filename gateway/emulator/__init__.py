"""A scripted LLM provider: real limits, injectable faults, answers that cost nothing.

It speaks OpenAI's HTTP API, and Anthropic's, Gemini's and Bedrock's own, well enough to develop, demo, test and benchmark
against without a key. It must not know the gateway: it stands where a provider stands.
Invariant: the same seed and the same request give the same answer text.
"""
