"""Python on the pages: each block imports and makes what it uses, and runs where its packages are installed."""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib.util
import inspect
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.docs.support import PAGES, fenced
from tests.e2e.conftest import StartGateway, _no_traceback, _shared_process, pytest_asyncio_loop_factories, start
from tests.e2e.durable import with_jobs

__all__ = ["_no_traceback", "_shared_process", "pytest_asyncio_loop_factories", "start"]
BLOCKS = {name: blocks for name, page in PAGES.items() if (blocks := fenced(page, "python"))}
REALTIME = 'connect(model="gpt-realtime")'
"""No emulator has realtime sessions: tests/products/realtime runs them."""
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}


def parsed(block: str) -> ast.Module:
    """A block as it can be pasted: also with `await` where no function is."""
    tree = compile(block, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    return tree


def given(tree: ast.Module) -> set[str]:
    """All names that a block imports, defines or assigns."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(name.asname or name.name).partition(".")[0] for name in node.names}
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def used(tree: ast.Module) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names - set(dir(builtins))


def packages(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)


@pytest.mark.parametrize("page", BLOCKS)
def test_blocks_import_what_they_use(page: str) -> None:
    """From the top of the page on."""
    known = set[str]()
    for block in BLOCKS[page]:
        tree = parsed(block)
        known |= given(tree)
        assert used(tree) - known == set(), block


@pytest.mark.parametrize("page", BLOCKS)
async def test_blocks_run(
    page: str, start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, against a gateway with jobs; but for those whose packages are not here, and what needs them."""
    gateway = await start(with_jobs(tmp_path, keys=None))
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hello."}]}
    (tmp_path / "night.jsonl").write_text(json.dumps({**LINE, "body": body}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program", "a-run"])
    monkeypatch.setattr(time, "sleep", lambda _, sleep=time.sleep: sleep(0.02))  # blocks that ask again
    names: dict[str, Any] = {"__name__": "__main__"}
    missing, made = set[str](), list[Any]()
    for block in BLOCKS[page]:
        tree = parsed(block)
        if (
            REALTIME in block
            or used(tree) & missing
            or any(importlib.util.find_spec(one) is None for one in packages(tree))
        ):
            missing |= given(tree) - set(names)
            continue
        for address in ("http://localhost:8080", "http://127.0.0.1:8080"):
            block = block.replace(address, gateway.url)
        code = compile(block, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        run = FunctionType(code, names)
        await (run() if code.co_flags & inspect.CO_COROUTINE else asyncio.to_thread(run))
        made += names.values()
    for one in reversed(made):  # streams before their clients
        if isinstance(one, OpenAI | openai.Stream):
            await asyncio.to_thread(one.close)
        elif isinstance(one, AsyncOpenAI):
            await one.close()
    assert "Traceback" not in capsys.readouterr().err
