"""`python -m benchmarks.chaos [--kills 100] [--seed 1] [--database sqlite|postgresql] [--json FILE]`.

Of 100 kills 80 hit the process of a run without Ray, 7 the driver of one on Ray, 8 a Ray worker, and 5 the raylet of
the second of two Ray nodes. Exits 1 when anything was lost, done again, or asked again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path

from benchmarks.chaos.campaign import Campaign, Tally, Victim
from benchmarks.chaos.cluster import two_nodes
from tests.postgres import PostgresServer
from tests.scripted.client import running_server

_SHARES: dict[Victim, float] = {"driver on ray": 0.07, "worker": 0.08, "raylet": 0.05}


def main() -> int:
    """Run the campaign, print its table on stdout, and return the exit code."""
    arguments = _arguments()
    plan: dict[Victim, int] = {victim: round(arguments.kills * share) for victim, share in _SHARES.items()}
    plan = {"driver": arguments.kills - sum(plan.values()), **plan}
    on_ray = any(kills for victim, kills in plan.items() if victim != "driver")
    with contextlib.ExitStack() as stack:
        scripted = stack.enter_context(running_server())
        url = stack.enter_context(_database(arguments.database))
        nodes = stack.enter_context(two_nodes()) if on_ray else None
        tallies = Campaign(scripted, url, plan, arguments.seed, nodes).run()
    print(_table(arguments.database, tallies))
    if arguments.json:
        rows = {victim: asdict(tally) for victim, tally in tallies.items()}
        arguments.json.write_text(json.dumps({"database": arguments.database, "seed": arguments.seed, "victims": rows}))
    return 0 if all(tally.is_good for tally in tallies.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


@contextlib.contextmanager
def _database(name: str) -> Generator[str | None]:
    if name == "sqlite":
        yield None
        return
    server = PostgresServer()
    try:
        yield server.url
    finally:
        server.close()


def _table(database: str, tallies: dict[Victim, Tally]) -> str:
    heads = ("kills", "runs", "calls open at the kills", "requests repeated", "nodes lost", "steps done again")
    lines = [
        f"| {database}: killed | {' | '.join(heads)} | answers asked again | s |",
        "|---|" + "---|" * (len(heads) + 2),
    ]
    for victim, t in tallies.items():
        figures = (t.kills, t.runs, t.open_calls, t.repeats, t.lost, t.done_again, t.asked_again, round(t.seconds))
        lines.append(f"| {victim} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
