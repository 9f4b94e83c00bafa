"""An LLM provider for tests and demos, with real limits and faults on demand; it does not import the gateway.

Invariants: the same seed and the same request give the same answer text; what a provider would refuse is refused.
"""
