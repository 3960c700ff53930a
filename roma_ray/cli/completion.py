"""What the shell offers after a command that takes a run."""

from __future__ import annotations

from collections.abc import Iterator

_OFFERED = 50


def run_ids(incomplete: str) -> Iterator[tuple[str, str]]:
    """The ids of the newest runs that begin with `incomplete`, each with its goal; none where there is no run log."""
    from roma_ray.cli.reading import read_runs
    from roma_ray.cli.render import cut
    from roma_ray.errors import RomaError

    try:
        rows = read_runs([], limit=_OFFERED)
    except RomaError:
        # Nobody reads an error that comes up while typing; the command itself will tell it.
        return
    yield from ((row.run_id, cut(row.goal, 60)) for row in rows if row.run_id.startswith(incomplete))
