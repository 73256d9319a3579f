"""Builds the dashboard into a wheel or a source distribution, so that neither needs Node.js to be installed."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs scripts/ui before the files are collected."""

    @property
    def _script(self) -> Path:
        return Path(self.root, "scripts", "ui")

    def dependencies(self) -> list[str]:
        """Node.js as a wheel, if the files must be built and the machine has none."""
        if not self._script.exists():
            return []  # a source distribution has the built files
        loader = SourceFileLoader("hourbell_ui", str(self._script))
        spec = spec_from_loader(loader.name, loader)
        assert spec is not None
        script = module_from_spec(spec)
        loader.exec_module(script)
        needed = script.is_stale() and script.installed_node() is None
        return [script.NODE_PACKAGE] if needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An editable installation serves the files of the checkout, which `make up` builds.
        if version != "editable" and self._script.exists():
            subprocess.run([sys.executable, str(self._script)], cwd=self.root, check=True)
