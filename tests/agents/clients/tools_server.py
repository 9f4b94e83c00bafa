"""A server of one tool over stdio, as the Model Context Protocol has it: what agents are given beside their own tools."""

import json
import sys

TOOL = {
    "name": "get_weather",
    "description": "The weather.",
    "inputSchema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "thread_id": {"type": "string"}},
        "required": ["city", "thread_id"],
    },
}


def result_of(method: str, params: dict) -> dict | None:
    match method:
        case "initialize":
            about = {"serverInfo": {"name": "weather", "version": "1"}, "capabilities": {"tools": {}}}
            return {"protocolVersion": params.get("protocolVersion", "2025-06-18"), **about}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            given = ", ".join(sorted(params.get("arguments") or ()))
            return {"content": [{"type": "text", "text": f"sunny, given {given}"}], "isError": False}
        case "ping":
            return {}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue  # a notification
    result = result_of(request["method"], request.get("params") or {})
    error = {"error": {"code": -32601, "message": "no such method"}}
    answer = error if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
