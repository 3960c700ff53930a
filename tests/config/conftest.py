"""A machine of its own for every test: a home, a working folder, an environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roma_ray.config import Loaded, load_config


class Machine:
    """Loads configs as a user would on a fresh machine, with files and variables that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.cwd = folder / "work"
        self.cwd.mkdir()
        self.variables: dict[str, str] = {"HOME": str(self.home)}

    def write(self, path: str, text: str) -> None:
        """Put `text` into `path`: `~/…` is in the user's home, anything else in the working folder."""
        at = self.home / path[2:] if path.startswith("~/") else self.cwd / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def load(self, *overrides: str, base: dict[str, Any] | None = None) -> Loaded:
        return load_config(overrides, environ=self.variables, cwd=self.cwd, base=base)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def value(machine: Machine) -> Callable[..., tuple[Any, str]]:
    """`value(key, *overrides)`: what the key has then, and where that came from."""

    def read(key: str, *overrides: str) -> tuple[Any, str]:
        loaded = machine.load(*overrides)
        at: Any = loaded.config
        for part in key.split("."):
            at = getattr(at, part)
        return at, loaded.sources[key]

    return read
