"""The command line: `key=value` with Hydra's grammar for values, and raw text where people write sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from roma_ray.config import keys
from roma_ray.errors import ConfigError, UsageError
from roma_ray.redact import MASK, Redactor, is_secret_name
from roma_ray.texts import is_utf8

RAW = frozenset({"goal", "goal_file", "resume", "record", "replay", "output", "answer", "files"})
"""Keys whose text is taken as it stands, with its quotes, commas and parentheses, before Hydra sees it."""

_FILE = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^,]+))\s*(?:,|$)""")
_USER_INFO = re.compile(r"(?<=://)\S*@")


def parse(overrides: Iterable[str], source: str) -> Iterator[tuple[str, Any]]:
    """Key and value of each override, in order.

    Raises UsageError for what is not `key=value`, ConfigError for an unknown key or a value that cannot be read.
    """
    for override in overrides:
        name, equals, text = override.partition("=")
        if name.startswith("~"):
            raise UsageError(f"{name} cannot be taken away", cure=f"give it a value: {name[1:]}=…")
        if not equals or not name.strip() or name.startswith("-"):
            raise UsageError(f"{_short(override)} is not key=value", cure=_how_to_write(override))
        key = keys.find(name.lstrip("+").strip(), source)
        yield key.name, value_of(key, text, source)


def value_of(key: keys.Key, text: str, source: str) -> Any:
    """What `text` means for `key`: itself for raw and text keys, else what Hydra's grammar reads."""
    if not is_utf8(text):
        raise ConfigError(f"{key.name} ({source}) is not UTF-8 text", cure="give it in UTF-8")
    if key.name == "files":
        return _files(text)
    if key.name in RAW:
        return text
    if key.nullable and text == "null":
        return None
    # Text needs no grammar: `lm.model=a=b,(c)` is what it says. A quoted text is unwrapped as Hydra does.
    if (key.is_text or key.kind == "section") and not text.startswith(("'", '"')):
        return text
    return _by_grammar(key, text, source)


def _by_grammar(key: keys.Key, text: str, source: str) -> Any:
    from hydra.core.override_parser.types import ChoiceSweep, QuotedString
    from hydra.errors import HydraException

    try:
        override = _parser().parse_override(f"value={text}")
        value = override._value  # pyright: ignore[reportPrivateUsage]
        if key.is_list and isinstance(value, ChoiceSweep) and value.simple_form:
            return [item.text if isinstance(item, QuotedString) else item for item in value.list]
        if override.is_sweep_override():
            raise ConfigError(
                f"{key.name}={unsecret(key.name, text)} ({source}) is a sweep", cure=f"give {key.words}, one run a time"
            )
        value = override.value()
    # Python refuses to read a number of thousands of digits.
    except (HydraException, ValueError) as error:
        cure = f"it takes {key.words}; text with special characters goes in quotes: '{key.name}=\"…\"'"
        shown = _short(unsecret(key.name, text))
        raise ConfigError(f"{key.name}={shown} ({source}) cannot be read", cure=cure) from error
    if key.is_list and value is not None and not isinstance(value, list):
        return [value]
    return value


def unsecret(name: str, text: str) -> str:
    """What may be shown of a faulty value of the key `name`, or of what was said about it."""
    if is_secret_name(name):
        return MASK
    # More than the redactor knows: a key before the @ of an address has no form, and its password any.
    return _USER_INFO.sub(f"{MASK}@", Redactor().text(text))


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _files(text: str) -> list[str]:
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    found = [next(part for part in m.groups() if part is not None).strip() for m in _FILE.finditer(inner)]
    return [name for name in found if name]


def _how_to_write(override: str) -> str:
    if override.startswith("-"):
        return "options are written as key=value; see --help"
    known = override.strip().lower()
    if re.fullmatch(r"[a-z_.]+", known) and any(key.name == known for key in keys.values()):
        return f"write {known}=…"
    return 'write goal="…"'


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "…"
