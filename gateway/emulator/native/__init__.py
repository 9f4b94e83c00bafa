"""The providers' own APIs: Anthropic's Messages, Gemini's generateContent, Bedrock's Converse.

Each is read, checked and answered as its provider does it, by path, whatever dialect the limits of OpenAI's paths follow. It
must not know the gateway's conversions, which it is there to try. Invariant: what a provider would refuse is refused.
"""
