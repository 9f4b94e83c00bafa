"""A scripted LLM provider: real limits, injectable faults, answers that cost nothing.

It speaks OpenAI's HTTP API well enough to develop, demo, test and benchmark against without a key. It must not know the
gateway: it stands where a provider stands. Invariant: the same seed and the same request give the same answer text.
"""

from __future__ import annotations

from gateway.emulator.app import Emulator, create_app
from gateway.emulator.config import EmulatedLimits, EmulatorConfig
from gateway.emulator.faults import FAULTS, Fault, FaultRule
from gateway.emulator.server import EmulatorServer

__all__ = [
    "FAULTS",
    "EmulatedLimits",
    "Emulator",
    "EmulatorConfig",
    "EmulatorServer",
    "Fault",
    "FaultRule",
    "create_app",
]
