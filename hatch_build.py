"""Builds the dashboard and the commit into a wheel or a source distribution, so that neither needs Node.js or git."""

import subprocess
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs scripts/ui before the files are collected, and adds commit.txt to them."""

    @property
    def _script(self) -> Path:
        return Path(self.root, "scripts", "ui")

    def dependencies(self) -> list[str]:
        """Node.js as a wheel, if the files must be built and the machine has none."""
        if not self._script.exists():
            return []  # a source distribution has the built files
        script = _module(self._script)
        needed = script.is_stale() and script.installed_node() is None
        return [script.NODE_PACKAGE] if needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An editable installation serves the files of the checkout, which `make up` builds.
        if version == "editable":
            return
        if self._script.exists():
            subprocess.run([sys.executable, str(self._script)], cwd=self.root, check=True)
        commit = _module(Path(self.root, "src", "hourbell", "cli", "commit.py"))
        if commit.FILE.exists():  # that of the source distribution
            return
        # Not written into the checkout, where it would soon be wrong.
        self._scratch = tempfile.TemporaryDirectory()
        file = Path(self._scratch.name, commit.FILE.name)
        file.write_text(commit.commit() + "\n")
        folder = "src/hourbell" if self.target_name == "sdist" else "hourbell"
        build_data["force_include"][str(file)] = f"{folder}/{file.name}"


def _module(path: Path) -> ModuleType:
    loader = SourceFileLoader(f"hourbell_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
