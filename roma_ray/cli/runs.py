"""`roma-ray runs`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from roma_ray import clock
from roma_ray.cli.output import print_columns, print_json
from roma_ray.cli.reading import read_runs
from roma_ray.cli.render import cut, seconds
from roma_ray.runlog.log import RunRow
from roma_ray.types import Json


def list_runs(overrides: Sequence[str], *, limit: int, as_json: bool) -> None:
    """Print the newest `limit` runs of the run log that `overrides` name."""
    rows = read_runs(overrides, limit=limit)
    if as_json:
        print_json([_document(row) for row in rows])
        return
    if not rows:
        print("no runs yet")
        return
    print_columns([("RUN", "STATUS", "STARTED", "GOAL"), *(_cells(row, time.time()) for row in rows)])


def _cells(row: RunRow, now_s: float) -> tuple[str, ...]:
    return row.run_id, row.status.value, f"{seconds(now_s - row.created_at)} ago", cut(row.goal, 80)


def _document(row: RunRow) -> dict[str, Json]:
    return {
        "run_id": row.run_id,
        "status": row.status.value,
        "goal": row.goal,
        "created_at": clock.iso(row.created_at),
        "ended_at": clock.iso(row.ended_at),
        "owner": row.owner,
    }
