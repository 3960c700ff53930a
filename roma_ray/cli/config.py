"""`roma-ray config`: every value and where it came from."""

from __future__ import annotations

from collections.abc import Sequence

from roma_ray.cli.output import print_columns, print_json
from roma_ray.cli.render import cut
from roma_ray.config import load_config, shown
from roma_ray.types import Json


def show_config(overrides: Sequence[str], *, everything: bool, as_json: bool) -> None:
    """Print key, value and source of the config that `overrides` would give.

    Values that a role or task type only inherits are left out unless `everything` is asked for.
    """
    loaded = load_config(overrides)
    rows = [
        (name, shown(loaded.config, name), source)
        for name, source in loaded.sources.items()
        if everything or not _is_inherited(name, source)
    ]
    if as_json:
        print_json({name: {"value": value, "source": source} for name, value, source in rows})
        return
    print_columns([("KEY", "VALUE", "FROM"), *((name, _text(value), source) for name, value, source in rows)])
    left_out = len(loaded.sources) - len(rows)
    if left_out:
        print(f"\n{left_out} values that roles inherit are left out; --all shows them.")


def _is_inherited(name: str, source: str) -> bool:
    return name.startswith("agents.") and ".lm." in name and (source == "default" or ", as " in source)


def _text(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(str, value))}]"
        case _:
            return cut(str(value), 60)
