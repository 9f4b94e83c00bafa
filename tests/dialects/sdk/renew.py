"""Records what the SDKs of Anthropic, Google and AWS say that requests and answers may have, for tests that run without them.

    python -m tests.dialects.sdk.renew

wants `anthropic`, `google-genai` and `botocore` beside the project, in an environment of its own: together they are some 60 MB,
and of all that the tests need the names and kinds of the fields. It rewrites `messages.json`, `generate.json` and
`converse.json`; what they say anew shows in the tests of `test_nothing_is_lost.py`. OpenAI's types are read where they are.
"""

from __future__ import annotations

import json
from functools import partial
from importlib import (
    import_module,  # for the gateway's own environment does not have them, and its types are checked there
)
from pathlib import Path
from typing import Any

from tests.dialects.sdk.forms import Reader

_line = partial(json.dumps, separators=(",", ":"))
HERE = Path(__file__).parent
_AWS = {
    "string": "str",
    "integer": "int",
    "long": "int",
    "float": "float",
    "double": "float",
    "boolean": "bool",
    "blob": "str",
}


def of_anthropic() -> dict[str, Any]:
    """The betas' types have all that the others have."""
    anthropic, beta = import_module("anthropic"), import_module("anthropic.types.beta")
    read = Reader()
    roots = {
        "request": read.form(beta.message_create_params.MessageCreateParamsNonStreaming),
        "answer": read.form(beta.BetaMessage),
    }
    request = read.types[roots["request"][1:]]
    request.pop("betas", None)  # it is a header
    request |= {"model!": "str", "stream": "bool"}
    request |= {
        "temperature": "float",
        "top_p": "float",
        "top_k": "int",
    }  # of the API's first version, which is spoken here
    return {"sdk": f"anthropic {anthropic.__version__}", "roots": roots, "types": read.types}


def of_google() -> dict[str, Any]:
    """A request is put together as the SDK does it: its configuration is spread over the body."""
    genai, google = import_module("google.genai"), import_module("google.genai.types")
    read = Reader()
    read.types["Request"] = {}
    content, config = read.form(google.Content), read.form(google.GenerationConfig)
    read.types["Request"] = {
        "contents!": [content], "systemInstruction": content, "generationConfig": config,
        "tools": [read.form(google.Tool)], "toolConfig": read.form(google.ToolConfig),
        "safetySettings": [read.form(google.SafetySetting)], "cachedContent": "str", "labels": {"*": "str"},
        "serviceTier": read.form(google.ServiceTier), "modelArmorConfig": read.form(google.ModelArmorConfig),
    }  # fmt: skip
    roots = {"request": "@Request", "answer": read.form(google.GenerateContentResponse)}
    return {"sdk": f"google-genai {genai.__version__}", "roots": roots, "types": read.types}


def of_aws() -> dict[str, Any]:
    """The members of a shape that stand in the path are no fields of the body."""
    botocore = import_module("botocore")
    model = import_module("botocore.session").get_session().get_service_model("bedrock-runtime")
    types: dict[str, Any] = {}

    def form(shape: Any) -> Any:
        if shape.type_name == "list":
            return [form(shape.member)]
        if shape.type_name == "map":
            return {"*": form(shape.value)}
        if getattr(shape, "enum", None):
            return {"=": list(shape.enum)}
        if shape.type_name != "structure":
            return _AWS[shape.type_name]
        if getattr(shape, "is_document_type", False):
            return "any"
        if shape.name not in types:
            types[shape.name] = {}
            types[shape.name] = {
                name + "!" * (name in shape.required_members): form(member)
                for name, member in shape.members.items()
                if member.serialization.get("location") is None
            }
        return f"@{shape.name}"

    operation = model.operation_model("Converse")
    roots = {"request": form(operation.input_shape), "answer": form(operation.output_shape)}
    return {"sdk": f"botocore {botocore.__version__}", "roots": roots, "types": types}


def main() -> None:
    for name, made in (("messages", of_anthropic()), ("generate", of_google()), ("converse", of_aws())):
        made["types"] = {name: made["types"][name] for name in sorted(_reached(made))}
        lines = ",\n".join(f"{_line(name)}:{_line(form)}" for name, form in made["types"].items())
        head = f'{{"sdk":"{made["sdk"]}","roots":{_line(made["roots"])},"types":{{\n'
        (HERE / f"{name}.json").write_text(f"{head}{lines}\n}}}}\n")


def _reached(made: dict[str, Any]) -> set[str]:
    """Returns the names of the objects that there is a way to."""
    found: set[str] = set()

    def follow(form: Any) -> None:
        if isinstance(form, str) and form.startswith("@") and form[1:] not in found:
            found.add(form[1:])
            follow(list(made["types"][form[1:]].values()))
        for inner in form if isinstance(form, list) else form.values() if isinstance(form, dict) else ():
            follow(inner)

    follow(list(made["roots"].values()))
    return found


if __name__ == "__main__":
    main()
