"""A scripted LLM provider: real limits, injectable faults, answers that cost nothing.

It speaks OpenAI's HTTP API, and Anthropic's, Gemini's and Bedrock's own, well enough to develop, demo, test and benchmark
against without a key. It must not know the gateway: it stands where a provider stands.
Invariant: the same seed and the same request give the same answer text.

The providers' own APIs: Anthropic's Messages, Gemini's generateContent, Bedrock's Converse.

Each is read, checked and answered as its provider does it, by path, whatever dialect the limits of OpenAI's paths follow. It
must not know the gateway's conversions, which it is there to try. Invariant: what a provider would refuse is refused.

Bedrock's Converse: its calls read, checked and answered.

Gemini's generateContent: its calls read, checked and answered.

Anthropic's Messages: its calls read, checked and answered."""
