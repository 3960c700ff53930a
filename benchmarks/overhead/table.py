"""The one table."""

from __future__ import annotations

from rich.table import Table

from benchmarks.overhead.cases import Case, Engine, Measurement
from benchmarks.overhead.promises import Medians, Promise

_COLUMNS = ("calls", "wall s", "x ideal", "x floor", "CPU s", "ms/call", "x floor", "peak MB", "load")


def as_table(medians: Medians, promises: list[Promise]) -> Table:
    """Medians by case and engine, each with its ratios and what was promised about it."""
    table = Table(title="What the engine costs: medians, CPU and memory with all child processes")
    table.add_column("case", no_wrap=True)
    table.add_column("on", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    table.add_column("promised")
    for (case, engine), measurement in medians.items():
        told = [str(p) for p in promises if p.case == case and p.engine == engine]
        label = f"{case.name}, {case.latency_s:g} s"
        table.add_row(label, engine, *_figures(case, engine, measurement, medians), "\n".join(told))
    return table


def _figures(case: Case, engine: Engine, m: Measurement, medians: Medians) -> list[str]:
    floor = medians.get((case, "floor on ray" if case.cold and engine == "ray" else "floor"))
    return [
        str(m.calls),
        f"{m.wall_s:.2f}",
        _ratio(m.wall_s, case.ideal_s),
        _ratio(m.wall_s, floor.wall_s if floor else 0.0),
        f"{m.cpu_s:.2f}",
        "" if case.cold else f"{m.cpu_ms_per_call:.2f}",
        _ratio(m.cpu_s, floor.cpu_s if floor else 0.0),
        f"{m.peak_mb:.0f}",
        f"{m.load:.1f}",
    ]


def _ratio(measured: float, base: float) -> str:
    return f"{measured / base:.2f}" if base else ""
