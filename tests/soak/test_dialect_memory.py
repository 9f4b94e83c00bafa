"""What a provider's own language takes of a process: memory once it is spoken, time of the start before that.

Each figure is of processes of their own: one with a provider of OpenAI's alone, and one with another besides.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.soak.conftest import Report

pytestmark = pytest.mark.soak

MOST_KIB, IDLE_KIB = 2048, 3072
"""The latter is what reading the table of models leaves behind, once for all languages; it has no bar."""
MORE_START_S = 0.06
"""The bar is 0.03, which noise comes near to on a busy machine: the start as a whole takes twenty times that."""
STARTS = 5
OPENAI = {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "k"}
DIALECTS: dict[str, dict[str, Any]] = {
    "messages": {"dialect": "anthropic", "api_key": "k"},
    "generate": {"dialect": "gemini", "api_key": "k"},
    "converse": {"dialect": "bedrock", "region": "us-east-1", "api_key": "k"},
}
"""By the language that it speaks, a provider."""
CHILD = """
import asyncio, gc, json, sys, time
from pathlib import Path

import gateway.cli.main, gateway.cli.serve
from gateway.app import Gateway
from gateway.cli.arguments import build_parser
from gateway.settings import Settings

build_parser("serve")


def rss_kib():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


async def start_and_speak():
    gateway = Gateway(Settings(config=Path(sys.argv[1]), host="127.0.0.1", port=0), {})
    await gateway.start()
    started_s = time.process_time()
    known = sorted(sys.modules)
    from tests.soak.language_streams import STREAMS
    from tests.soak.languages import conversation, way
    bodies = [conversation("chat", 8, 2000, stream=True) for _ in range(50)]
    before = rss_kib()
    for spoken in sys.argv[2:]:
        one = way("chat", spoken)
        for body in bodies:
            find_gaps = one.pair.translator.gaps(body, one.facts)
            reader = one.pair.reader(one.converted(body))
            for start, delta in STREAMS[spoken].values():
                reader = one.pair.reader(one.converted(body))
                for event in (*start, *[delta] * 100):
                    reader.feed(event)
    spoken_kib = rss_kib() - before
    print(json.dumps({"started_s": started_s, "spoken_kib": spoken_kib, "modules": known, "rss_kib": before}))
    await gateway.stop()

asyncio.run(start_and_speak())
"""


def seen(folder: Path, *spoken: str) -> dict[str, Any]:
    """What a gateway with providers of these languages has taken: the best of some starts."""
    config = folder / f"{'-'.join(spoken) or 'openai'}.yaml"
    providers = {"main": OPENAI} | {one: DIALECTS[one] for one in spoken}
    models = {"m": {"targets": ["main/m", *(f"{one}/m" for one in spoken)]}}
    config.write_text(yaml.safe_dump({"providers": providers, "models": models}))
    command = [sys.executable, "-c", CHILD, str(config), *spoken]
    ran = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(STARTS)]
    found = [orjson.loads(one.splitlines()[-1]) for one in ran]
    best = {name: min(one[name] for one in found) for name in ("started_s", "spoken_kib", "rss_kib")}
    return {**best, "modules": set(found[0]["modules"])}


@pytest.mark.parametrize("spoken", DIALECTS)
def test_a_language_is_small_and_starts_at_once(tmp_path: Path, spoken: str, report: Report) -> None:
    """2 MB once it is spoken; before that a table is read, and none of its code."""
    without, with_it = seen(tmp_path), seen(tmp_path, spoken)
    later_s = with_it["started_s"] - without["started_s"]
    idle_kib = with_it["rss_kib"] - without["rss_kib"]
    report(
        f"{spoken}: {with_it['spoken_kib']} KiB once it is spoken, {idle_kib} KiB before that, start {later_s * 1000:+.0f} ms "
        f"({without['started_s'] * 1000:.0f} ms without); imported {sorted(with_it['modules'] - without['modules'])}"
    )
    assert with_it["spoken_kib"] <= MOST_KIB
    assert idle_kib <= IDLE_KIB
    assert later_s <= MORE_START_S
    languages = (*(f"gateway.dialects.{one}." for one in ("anthropic", "bedrock", "gemini.in_", "gemini.out_")),)
    assert not [one for one in with_it["modules"] if one.startswith((*languages, "cryptography", "websockets"))]
