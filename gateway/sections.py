"""What is read of a config outside of the core, in the order of the list of products.

A product that is not here has a stand-in, which refuses what is only for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path as FilePath
from typing import Final

from gateway.core.config.fields import refused
from gateway.core.config.product_sections import EntryField, Sections, SectionSpec, Settings
from gateway.core.config.source import Document, Problem, quoted
from gateway.installed import is_installed
from gateway.product_list import PRODUCTS, ProductLine


class NotInstalled(SectionSpec):
    """Stands for a product that is not there: a config that names one of its fields or files is refused."""

    def __init__(
        self,
        name: str,
        *,
        file: Sequence[str] = (),
        key: Sequence[str] = (),
        model: Sequence[str] = (),
        policies: Sequence[str] = (),
        folders: Sequence[str] = (),
    ) -> None:
        """The others are the fields that it would have of the file, of a key and a model, its policy files, and its folders
        of YAML files in a policy folder.
        """
        self._problem = f"{quoted(name)} is not installed"
        self.file_fields, self.key_fields, self.model_fields = (
            [EntryField(field, refused(self._problem), None, after="") for field in fields]
            for fields in (file, key, model)
        )
        self.policy_files = policies
        self._folders = folders

    def list_files(self, folder: FilePath) -> Iterator[FilePath]:
        for name in self._folders:
            here = folder / name
            # Hidden files are editors' own.
            files = (file for file in here.iterdir() if file.name[0] != ".") if here.is_dir() else ()
            yield from (file for file in sorted(files) if file.suffix in {".yaml", ".yml"})

    def read_folder(self, folder: FilePath, environ: Mapping[str, str], problems: list[Problem]) -> Sequence[Document]:
        problems += [Problem(str(file), 0, self._problem) for file in self.list_files(folder)]
        return ()

    def read_policies(self, documents: Mapping[str, Document], beside: FilePath) -> Settings:
        for name in self.policy_files:
            if name in documents:
                documents[name].complain((), self._problem)
        return {}


def section_of(product: ProductLine) -> SectionSpec:
    """Returns the section of a product; of one that is not here, what refuses whatever is only for it."""
    if not is_installed(product.package):
        name = product.package.rpartition(".")[2]
        return NotInstalled(
            name,
            file=product.file_keys,
            key=product.key_keys,
            model=product.model_keys,
            policies=product.policy_files,
            folders=product.policy_folders,
        )
    if isinstance(product.section, SectionSpec):
        return product.section
    section = getattr(import_module(f"{product.package}.config"), product.section)()
    assert isinstance(section, SectionSpec), product.package  # noqa: S101  # the line above is wrong
    return section


SECTIONS: Final[Sections] = tuple(section_of(line) for line in PRODUCTS if line.section)
