"""AWS's shared files of credentials and config, and one profile in them.

Source: https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.credentials.google.minted import Stamp, read_text, stamp_of, why_unread

CANNOT: Final = ("sso_session", "sso_start_url", "login_session", "source_profile", "credential_source")
"""Fields of profiles whose credentials come from elsewhere, by means that the gateway does not have."""


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Where the two files are."""

    credentials: str
    config: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of both files, of which that of credentials goes first."""

    name: str
    fields: Mapping[str, str]
    files: Mapping[str, Stamp]
    where: str
    """What was looked at, in words."""

    def __repr__(self) -> str:
        return f"Profile({self.name})"


def shared_files(environ: Mapping[str, str]) -> SharedFiles:
    """Returns where the files are for this environment."""
    home = f"{environ.get('HOME') or '~'}/.aws"
    return SharedFiles(
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/credentials",
        environ.get("AWS_CONFIG_FILE") or f"{home}/config",
    )


def profile_name(environ: Mapping[str, str]) -> str:
    """Returns the profile that the environment chooses."""
    return environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"


def read_profile(name: str, files: SharedFiles) -> Profile:
    """Returns the profile, without fields where no file has it."""
    in_config = ("default", "profile default") if name == "default" else (f"profile {name}",)
    stamps: dict[str, Stamp] = {}
    fields: dict[str, str] = {}
    where = []
    for path, sections in ((files.config, in_config), (files.credentials, (name,))):
        found, stamps[path], what = _section(path, sections)
        fields |= found
        where.append(what)
    return Profile(name, fields, stamps, ", ".join(reversed(where)))


def _section(path: str, sections: tuple[str, ...]) -> tuple[Mapping[str, str], Stamp, str]:
    parser = configparser.RawConfigParser(strict=False, default_section="\0")
    try:
        text, stamp = read_text(path)
        parser.read_string(text)
    except configparser.Error:
        return {}, stamp_of(path), f"{path} is no file of profiles"
    except (OSError, ValueError) as error:
        return {}, stamp_of(path), f"{path}: {why_unread(error)}"
    found = [section for section in sections if parser.has_section(section)]
    if not found:
        return {}, stamp, f"{path} has no [{sections[0]}]"
    return {name: value for one in found for name, value in parser.items(one)}, stamp, f"[{found[-1]}] in {path}"
