"""What a process does not load that has no use for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFIG = """
providers: {p: {dialect: openai, base_url: "http://127.0.0.1:9/v1", api_key: sk-x}}
models: {m: {targets: [p/m]}}
"""
START = """
import asyncio, sys
from pathlib import Path
from gateway.app import Gateway
from gateway.settings import Settings

async def start_and_stop():
    gateway = Gateway(Settings(config=Path(sys.argv[1]), host="127.0.0.1", port=0), {})
    await gateway.start()
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
    await gateway.stop()

asyncio.run(start_and_stop())
import redis  # it can be had all the same
"""


def test_a_gateway_without_redis_does_not_load_its_client(tmp_path: Path) -> None:
    """Not through pybreaker, either, which takes it where it finds it."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)

    ran = subprocess.run([sys.executable, "-c", START, str(config)], capture_output=True, text=True, check=True)

    loaded = ran.stdout.splitlines()[0].split()
    assert "pybreaker" in loaded
    assert not {"redis", "hiredis"} & set(loaded)
