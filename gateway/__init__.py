"""An OpenAI-compatible LLM gateway that runs as a sidecar."""

__version__ = "0.1.0"
