"""Finds what is asked of targets in whose provider's language there is no word for it, where the config says so by itself.

That is: a model whose name is that of a kind of model (embeddings, sound, pictures, …), calls that are put together, the
embeddings of a semantic cache, steps of pipelines, batches at half price, and languages that a provider cannot have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path as FilePath
from typing import Final

from gateway.core.config.load.folder import PolicySets
from gateway.core.config.models.sections_models.models import Route
from gateway.core.config.providers.credentials import Groups
from gateway.core.config.schema import Kind
from gateway.core.config.source.problems import Document, Path, quoted
from gateway.core.config.targets.targets import TargetPlace
from gateway.dialects.known.models import name_in_cloud
from gateway.dialects.spoken import Spoken, languages_of, why_never
from gateway.products.batches.native.rules.choice import has_batch_api
from gateway.products.pipelines.compile.compiling.plan import PipelinePlan

_SAID_BY_NAMES: Final = (
    ("embeddings", re.compile(r"text-embedding-|.*-embedding-\d|.*\.(titan-embed|embed)-|amazon\..*-embeddings$")),
    (
        "realtime",
        re.compile(r"(gpt-(4o-)?(mini-)?|gpt-4o-mini-)realtime|gemini-live-|.*-native-audio|.*nova-(2-)?sonic"),
    ),
    ("transcriptions", re.compile(r"whisper|gpt-4o-(mini-)?transcribe")),
    ("speech", re.compile(r"tts-1|gpt-4o-mini-tts|.*-preview-tts")),
    ("images", re.compile(r"dall-e-|gpt-image-|imagen-|.*nova-canvas|.*titan-image|stability\.")),
    ("moderations", re.compile(r"(omni|text)-moderation-")),
)
"""Endpoints, and the names of models that are asked there and nowhere else."""
DEFAULT: Final = "default"
_OWN: Final = frozenset(("gemini", "vertex", "bedrock"))
_HAVE_EMBEDDINGS: Final = "; Gemini, Vertex AI, and Titan and Cohere at Bedrock have embeddings, and so have OpenAI's"


@dataclass(frozen=True, slots=True)
class Asked:
    """What of the config is looked at besides its models."""

    groups: Groups
    kinds: Mapping[str, Kind]
    policies: PolicySets
    plans: Mapping[str, PipelinePlan]

    def why_never(self, endpoint: str, place: TargetPlace) -> str | None:
        """Returns why a target refuses each call to this endpoint; None: it takes some, or it is not known."""
        group = self.groups.get(place.entry.provider)
        if group is None:
            return None
        provider, kind = group[0], self.kinds[place.entry.provider]
        declared = provider.speaks if place.entry.speaks is None else place.entry.speaks
        speaks = languages_of(provider.dialect, kind, declared)
        spoken = Spoken(kind, speaks, provider.dialect, self.policies.models.of).at(place.model or place.asked)
        return why_never(endpoint, spoken, place.model)


def check_endpoints(document: Document, routes: Mapping[str, Route], asked: Asked) -> None:
    """Notes what no target of a model can serve, although the config asks for it."""
    _check_languages(document, routes, asked)
    for name, route in routes.items():
        for index, place in enumerate(route.places):
            if place.model is not None:
                _check_name(document, ("models", name, "targets", index), (name, place.model), place, asked)
        if route.grouping is not None:
            whys = [asked.why_never("embeddings", one) and asked.why_never("moderations", one) for one in route.places]
            if whys and all(whys):
                told = f"no target of the model has embeddings, or moderations: {whys[0]}"
                document.complain(("models", name, "group_embeddings"), told)
    _check_caches(routes, asked)
    _check_pipelines(routes, asked)
    _check_batches(document, routes, asked)


def _check_batches(document: Document, routes: Mapping[str, Route], asked: Asked) -> None:
    """Notes models that pick half price at providers that have none; what `default` says of all models is no error."""
    for name, route in routes.items():
        picked = asked.policies.jobs.get(route.entry.jobs)
        if route.entry.jobs == DEFAULT or picked is None or picked.batches.run != "native":
            continue
        owners = {place.entry.provider: asked.groups.get(place.entry.provider) for place in route.places}
        found = {owner: group[0] for owner, group in owners.items() if group is not None}
        if found and len(found) == len(owners) and not any(map(has_batch_api, found.values())):
            named = ", ".join(f"{owner}: {provider.dialect}" for owner, provider in found.items())
            told = (
                f"{document.show(('models', name, 'jobs'), route.entry.jobs)} has `batches.run: native`, and no provider of "
                f"the model has a Batch API that is known here ({named}): pick a set with `run: here`, or add a target at a "
                "provider of the dialect openai, azure or anthropic"
            )
            document.complain(("models", name, "jobs"), told)


def _check_languages(document: Document, routes: Mapping[str, Route], asked: Asked) -> None:
    for name, group in asked.groups.items():
        path: Path = ("providers", name)
        if document.at((*path, "dialect")) == group[0].dialect:
            _check_speaks(document, (*path, "speaks"), group[0].dialect, group[0].speaks)
    for name, route in routes.items():
        for index, place in enumerate(route.places):
            owner = asked.groups.get(place.entry.provider)
            if owner is not None:
                here = ("models", name, "targets", index, "speaks")
                _check_speaks(document, here, owner[0].dialect, place.entry.speaks)


def _check_speaks(document: Document, path: Path, dialect: str, speaks: object) -> None:
    if not isinstance(speaks, list | tuple):
        return
    if dialect in _OWN:
        document.complain(path, f"is not for the dialect {dialect}, which has a language of its own: leave it out")
    elif dialect == "anthropic" and "messages" not in speaks:
        told = "lacks messages, which is the language of the dialect anthropic: add it, or use `dialect: openai`"
        document.complain(path, told)


def _check_name(document: Document, path: Path, names: tuple[str, str], place: TargetPlace, asked: Asked) -> None:
    found = ((one, endpoint) for one in dict.fromkeys(reversed(names)) for endpoint in _endpoints_of(one))
    for one, endpoint in found:
        why = asked.why_never(endpoint, place)
        if why is not None:
            remedy = _HAVE_EMBEDDINGS if endpoint == "embeddings" else ""
            document.complain(
                path, f"{quoted(one)} is asked for {endpoint}, and {why}: name a provider that has it{remedy}"
            )
            return


def _endpoints_of(model: str) -> Iterator[str]:
    name = name_in_cloud(model)
    yield from (endpoint for endpoint, pattern in _SAID_BY_NAMES if pattern.match(name))


def _check_caches(routes: Mapping[str, Route], asked: Asked) -> None:
    """Notes semantic caches whose model makes no embeddings."""
    cache = asked.policies.cache
    for name in {route.entry.cache for route in routes.values()} & cache.sets.keys() if cache.document else ():
        semantic = cache.sets[name].semantic
        if cache.document is not None and semantic is not None:
            why = _why_none("embeddings", semantic.embeddings, routes, asked)
            if why is not None:
                shown = quoted(semantic.embeddings)
                told = f"{shown} makes none: {why}{_HAVE_EMBEDDINGS}"
                cache.document.complain((name, "semantic", "embeddings"), told)


def _check_pipelines(routes: Mapping[str, Route], asked: Asked) -> None:
    """Notes steps whose model has no such endpoint."""
    documents = {FilePath(one.file).stem: one for one in asked.policies.pipelines}
    for name, plan in asked.plans.items():
        for step in plan.steps.values():
            for branch in step.branches:
                why = _why_none(branch.call.endpoint, branch.call.model, routes, asked)
                if why is not None:
                    told = f"no target of the model {quoted(branch.call.model)} serves {branch.call.endpoint}: {why}"
                    documents[name].complain(("steps", step.name, "call", "endpoint"), told)


def _why_none(endpoint: str, model: str, routes: Mapping[str, Route], asked: Asked) -> str | None:
    """Returns why no target of a model takes a call to this endpoint; None: one does, or it is not known."""
    matching = [name for name in routes if name == model or fnmatchcase(model, name)]
    if not matching:
        return None
    route = routes[model if model in matching else max(matching, key=len)]
    whys = [asked.why_never(endpoint, place) for place in route.places]
    return whys[0] if whys and all(whys) and not route.entry.fallbacks else None
