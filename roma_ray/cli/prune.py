"""`roma-ray prune`: remove old runs, with their files and values."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence

import typer

from roma_ray.cli.output import print_json, print_text
from roma_ray.cli.runs import run_document, run_table
from roma_ray.config import load_config
from roma_ray.errors import UsageError

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def prune_runs(overrides: Sequence[str], *, older_than: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove the runs that ended longer than `older_than` ago, after a question unless `yes` is given.

    Raises UsageError where nobody can be asked.
    """
    from roma_ray import api

    older_than_s = age_s(older_than)
    config = load_config(overrides).config
    old = asyncio.run(api.prune(config, older_than_s=older_than_s, dry_run=True))
    if not as_json:
        print_text(run_table(old) if old else f"no run ended more than {older_than} ago")
    if old and not dry_run and (yes or _agreed(len(old))):
        old = asyncio.run(api.prune(config, older_than_s=older_than_s, dry_run=False))
        print(f"{_number(len(old))} removed", file=sys.stderr)
    if as_json:
        print_json([run_document(row) for row in old])


def age_s(text: str) -> float:
    """The seconds in `90s`, `45m`, `12h`, `30d` or `2w`. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is no age", cure="write a number and a unit: 90s, 45m, 12h, 30d, 2w")
    return float(match[1]) * _UNITS_S[match[2]]


def _agreed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked whether to remove these runs", cure="say --yes, or --dry-run to look")
    return typer.confirm(f"remove {_number(count)} for good?", err=True)


def _number(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
