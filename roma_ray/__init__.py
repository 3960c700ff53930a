"""roma_ray: recursive agents on Ray."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from roma_ray.version import __version__ as __version__

if TYPE_CHECKING:
    from roma_ray.api import Result, aresume, asolve, resume, solve
    from roma_ray.modules import Aggregator, Atomizer, BaseModule, Executor, Planner, Verifier
    from roma_ray.types import NodeType, PredictionStrategy, SubTask, TaskType

_HOMES = {
    "roma_ray.api": ("Result", "aresume", "asolve", "resume", "solve"),
    "roma_ray.modules": ("Aggregator", "Atomizer", "BaseModule", "Executor", "Planner", "Verifier"),
    "roma_ray.types": ("NodeType", "PredictionStrategy", "SubTask", "TaskType"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022
    "solve", "asolve", "resume", "aresume", "Result",
    "Atomizer", "Planner", "Executor", "Aggregator", "Verifier", "BaseModule",
    "SubTask", "TaskType", "NodeType", "PredictionStrategy",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Lazy: `import roma_ray` and `roma-ray --help` must not load dspy or ray.
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'roma_ray' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `roma_ray.solve` the function: importing the submodule of that name would set the attribute to it."""

    @property
    def solve(self) -> Any:
        return __getattr__("solve")

    @solve.setter
    def solve(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
