"""The official SDKs that are tried, three versions of each, and how each is installed and run.

Each version has a folder of its own under `.venv-clients`, where it is installed once, by the ordinary client of its registry.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
FOLDERS: Final = HERE.parent.parent / ".venv-clients"
MOST_INSTALL_S: Final = 900.0


class Sdk(NamedTuple):
    """One version of an SDK."""

    language: str
    """`python`, `node`, `go` or `java`."""
    package: str
    version: str
    speaks: Sequence[str]
    """What it can stream: `chat`, `responses`, `messages`."""

    @property
    def name(self) -> str:
        return f"{self.language} {self.package} {self.version}"

    @property
    def folder(self) -> Path:
        return FOLDERS / re.sub(r"[^\w.-]", "_", self.name)  # a colon would part a class path

    @property
    def needs(self) -> str:
        """The program without which it cannot be installed."""
        return {"python": sys.executable, "node": "npm", "go": "go", "java": "mvn"}[self.language]

    def command(self, base_url: str, language: str) -> list[str]:
        """Returns what streams one answer and prints it as JSON: its `text`, and the `error` where there was one."""
        programs: dict[str, list[str]] = {
            "python": [str(self.folder / "bin" / "python"), str(HERE / "stream.py")],
            "node": ["node", str(self.folder / "stream.mjs")],
            "go": [str(self.folder / "stream")],
            "java": ["java", "-cp", f"{self.folder / 'classes'}:{self.folder / 'jars'}/*", "Stream"],
        }
        return [*programs[self.language], base_url, language]

    def install(self) -> None:
        """Installs it, unless it is there. Raises CalledProcessError, with what the registry's client has said."""
        mark = self.folder / ".installed"
        if mark.exists():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        getattr(self, f"_install_{self.language}")()
        mark.touch()

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True, timeout=MOST_INSTALL_S)

    def _install_python(self) -> None:
        self._run(sys.executable, "-m", "venv", ".")
        self._run(
            "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{self.package}=={self.version}"
        )

    def _install_node(self) -> None:
        self._run("npm", "install", "--silent", "--no-audit", "--no-fund", f"{self.package}@{self.version}")
        shutil.copy(HERE / "stream.mjs", self.folder)

    def _install_go(self) -> None:
        shutil.copy(HERE / f"go_{self._maker}" / "main.go", self.folder)
        (self.folder / "go.mod").write_text("module stream\n\ngo 1.22\n")
        self._run("go", "get", f"{self.package}@v{self.version}")
        self._run("go", "build", "-o", "stream", ".")

    def _install_java(self) -> None:
        group, artifact = self.package.split(":")
        depends = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{self.version}</version>"
        (self.folder / "pom.xml").write_text(_POM % depends)
        self._run("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars")
        self._run("javac", "-d", "classes", "-cp", "jars/*", str(HERE / f"java_{self._maker}" / "Stream.java"))

    @property
    def _maker(self) -> str:
        return "anthropic" if "anthropic" in self.package else "openai"


_POM: Final = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>"
    "<dependencies><dependency>%s</dependency></dependencies></project>"
)
_OPENAI: Final = ("chat", "responses")
_MESSAGES: Final = ("messages",)
_TRIED: Final = (
    ("python", "openai", ("1.109.1", "2.54.0", "3.57.0"), _OPENAI),
    ("python", "anthropic", ("0.125.0", "1.17.0", "2.14.0"), _MESSAGES),
    ("node", "openai", ("4.104.0", "5.23.2", "7.59.0"), _OPENAI),
    ("node", "@anthropic-ai/sdk", ("0.102.0", "0.137.0", "1.14.0"), _MESSAGES),
    ("go", "github.com/openai/openai-go/v3", ("3.7.0", "3.40.0", "3.99.0"), _OPENAI),
    ("go", "github.com/anthropics/anthropic-sdk-go", ("1.10.0", "1.42.0", "1.84.0"), _MESSAGES),
    ("java", "com.openai:openai-java", ("2.20.1", "3.7.1", "4.101.0"), _OPENAI),
    ("java", "com.anthropic:anthropic-java", ("3.3.0", "3.9.0", "3.14.0"), _MESSAGES),
)
SDKS: Final = [
    Sdk(language, package, version, speaks) for language, package, versions, speaks in _TRIED for version in versions
]
