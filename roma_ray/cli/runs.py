"""`roma-ray runs`: the runs of the run log, once or kept up to date."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from roma_ray import clock
from roma_ray.cli.output import columns, print_json, print_text
from roma_ray.cli.reading import read_runs
from roma_ray.cli.render import cut, seconds
from roma_ray.runlog.log import RunRow
from roma_ray.types import Json

_EVERY_S = 2.0


def list_runs(overrides: Sequence[str], *, limit: int, as_json: bool) -> None:
    """Print the newest `limit` runs of the run log that `overrides` name."""
    rows = read_runs(overrides, limit=limit)
    if as_json:
        print_json([run_document(row) for row in rows])
    else:
        print_text(run_table(rows))


def watch_runs(overrides: Sequence[str], *, limit: int, as_json: bool) -> None:
    """Print the list again whenever a run begins or changes its state, until Ctrl-C; on a terminal in place."""
    if as_json or not sys.stdout.isatty():
        _watch(
            overrides, limit, (lambda rows: print_json([run_document(r) for r in rows])) if as_json else _print_table
        )
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        _watch(overrides, limit, lambda rows: live.update(Text(run_table(rows), no_wrap=True), refresh=True))


def run_table(rows: Sequence[RunRow]) -> str:
    """Runs as aligned columns under a heading."""
    if not rows:
        return "no runs yet"
    return "\n".join(columns([("RUN", "STATUS", "STARTED", "GOAL"), *(_cells(row, time.time()) for row in rows)]))


def run_document(row: RunRow) -> dict[str, Json]:
    """A run of the list as plain data."""
    return {
        "run_id": row.run_id,
        "status": row.status.value,
        "goal": row.goal,
        "created_at": clock.iso(row.created_at),
        "ended_at": clock.iso(row.ended_at),
        "owner": row.owner,
    }


def _print_table(rows: Sequence[RunRow]) -> None:
    print_text(run_table(rows) + "\n")


def _watch(overrides: Sequence[str], limit: int, show: Callable[[Sequence[RunRow]], Any]) -> None:
    shown: list[RunRow] | None = None
    while True:
        rows = read_runs(overrides, limit=limit)
        if rows != shown:
            show(rows)
            shown = rows
        time.sleep(_EVERY_S)


def _cells(row: RunRow, now_s: float) -> tuple[str, ...]:
    return row.run_id, row.status.value, f"{seconds(now_s - row.created_at)} ago", cut(row.goal, 80)
