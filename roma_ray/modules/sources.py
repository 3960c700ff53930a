"""Where instructions and demos come from: text, a template file, or a variable in a module."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import dspy

from roma_ray.errors import ConfigError

_VARIABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_TEMPLATE_ENDINGS = (".jinja", ".jinja2")


def load_instructions(source: str) -> str:
    """The instructions that `source` names.

    A single word that ends in `.jinja` or `.jinja2` is the path of a template (rendered without variables),
    `module:VARIABLE` a text in an importable module, and everything else the instructions themselves.
    Raises ConfigError when the file, module or variable is not there, or is not a text.
    """
    text = source.strip()
    if text.endswith(_TEMPLATE_ENDINGS) and "\n" not in text:
        return _render(Path(text).expanduser())
    if not _VARIABLE.fullmatch(text):
        return source
    found = load_variable(text, what="instructions")
    if not isinstance(found, str):
        raise ConfigError(f"instructions {text!r} is a {type(found).__name__}, not a text")
    return found


def load_demos(source: str) -> list[dspy.Example]:
    """The demos in the list that `module:VARIABLE` names.

    Raises ConfigError when there is no such variable, or when it is not a list of dspy.Example.
    """
    if not _VARIABLE.fullmatch(source.strip()):
        raise ConfigError(f"demos {source!r} is not of the form module:VARIABLE")
    found = load_variable(source.strip(), what="demos")
    if not isinstance(found, list | tuple) or not all(isinstance(item, dspy.Example) for item in found):
        raise ConfigError(f"demos {source!r} is not a list of dspy.Example")
    return list(found)


def load_variable(source: str, *, what: str) -> Any:
    """The value of `module:VARIABLE`; `what` names its use in errors. Raises ConfigError when it is not there."""
    module_name, _, variable = source.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{what} {source!r}: module {module_name!r} cannot be imported: {error}",
            cure="check the name and PYTHONPATH; text with a space after the colon is taken as it is",
        ) from error
    try:
        return getattr(module, variable)
    except AttributeError:
        raise ConfigError(f"{what} {source!r}: module {module_name!r} has no variable {variable!r}") from None


def _render(path: Path) -> str:
    try:
        template = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"instructions file {str(path)!r} cannot be read: {error}") from error
    # Imported here: only instructions from a template pay for it.
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined)
    try:
        return environment.from_string(template).render()
    except jinja2.TemplateError as error:
        raise ConfigError(f"instructions file {str(path)!r} is no valid template: {error}") from error
