"""What is promised (docs/decisions/006-overhead-promises.md says why), judged on the medians of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.overhead.cases import BIG_TREE, COLD, FAN_OUTS, SMALL_TREE, Case, Engine, Measurement

Medians = dict[tuple[Case, Engine], Measurement]

_SLACK = 1.10
"""A promise is missed when it is missed by more than 10 %: walls and CPU vary by that much on a shared machine."""

_CPU_X_FLOOR: dict[tuple[Engine, float], float] = {
    ("inline", 0.0): 1.8,
    ("inline", 1.0): 1.8,
    ("ray", 0.0): 3.6,
    ("ray", 1.0): 5.0,
}
"""By engine and latency, from the anchors on an idle machine: floor 1.1 ms, inline 2 ms, Ray 4 and 5.5 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise about one measured case. `exact` ones have no slack."""

    case: Case
    engine: Engine
    what: str
    measured: float
    limit: float
    exact: bool = False

    @property
    def kept(self) -> bool:
        return self.measured == self.limit if self.exact else self.measured <= self.limit * _SLACK

    def __str__(self) -> str:
        sign = "=" if self.exact else "<="
        return f"{self.what} {_figure(self.measured)} {sign} {_figure(self.limit)} {'ok' if self.kept else 'MISSED'}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def judge(medians: Medians) -> list[Promise]:
    """All promises about the cases that were measured."""
    promises = [*_exact_calls(medians)]
    for rule in (_fan_out_wall, _cpu_per_call, _flat_in_n, _big_tree, _cold_start):
        promises += rule(medians)
    return promises


def _exact_calls(medians: Medians) -> Iterator[Promise]:
    for (case, engine), m in medians.items():
        if engine in ("inline", "ray") and not case.cold:
            yield Promise(case=case, engine=engine, what="calls", measured=m.calls, limit=case.calls, exact=True)


def _fan_out_wall(medians: Medians) -> Iterator[Promise]:
    """Near the ideal; where not even the floor gets there, near the floor."""
    case = FAN_OUTS[200, 1.0]
    floor = medians.get((case, "floor"))
    limit_s = max(1.2 * case.ideal_s, 1.1 * floor.wall_s if floor else 0.0)
    for engine, m in _ours(medians, case):
        yield Promise(case=case, engine=engine, what="wall s", measured=m.wall_s, limit=limit_s)


def _cpu_per_call(medians: Medians) -> Iterator[Promise]:
    """As a ratio to the floor of the same case: what a machine makes of a millisecond changes from hour to hour."""
    for latency_s in (0.0, 1.0):
        case = FAN_OUTS[200, latency_s]
        floor = medians.get((case, "floor"))
        if floor is None:
            continue
        for engine, m in _ours(medians, case):
            ratio = m.cpu_ms_per_call / floor.cpu_ms_per_call
            limit = _CPU_X_FLOOR[engine, latency_s]
            yield Promise(case=case, engine=engine, what="CPU/call x floor", measured=ratio, limit=limit)


def _flat_in_n(medians: Medians) -> Iterator[Promise]:
    """Ten times the nodes may not make one call dearer, nor one node slower, than it makes them for the floor."""
    for engine, _ in _ours(medians, BIG_TREE):
        for what, spent in (("CPU/call", _cpu_s), ("s/node", _wall_s)):
            growth = _growth(medians, engine, spent)
            if growth is not None:
                told = f"{what} against {SMALL_TREE.name}"
                # The big tree is measured at another time, perhaps on a busier machine: the floor tells by how much.
                growth /= _growth(medians, "floor", spent) or 1.0
                yield Promise(case=BIG_TREE, engine=engine, what=told, measured=growth, limit=1.0)


def _growth(medians: Medians, engine: Engine, spent: Callable[[Measurement], float]) -> float | None:
    """How much more one call of the big tree takes than one of the small tree; None where one was not measured."""
    big, small = medians.get((BIG_TREE, engine)), medians.get((SMALL_TREE, engine))
    if big is None or small is None:
        return None
    return (spent(big) / BIG_TREE.calls) / (spent(small) / SMALL_TREE.calls)


def _cpu_s(measurement: Measurement) -> float:
    return measurement.cpu_s


def _wall_s(measurement: Measurement) -> float:
    return measurement.wall_s


def _big_tree(medians: Medians) -> Iterator[Promise]:
    for engine, m in _ours(medians, BIG_TREE):
        yield Promise(case=BIG_TREE, engine=engine, what="MB", measured=m.peak_mb, limit=2000.0)


def _cold_start(medians: Medians) -> Iterator[Promise]:
    floors: dict[Engine, Engine] = {"inline": "floor", "ray": "floor on ray"}
    for engine, m in _ours(medians, COLD):
        floor = medians.get((COLD, floors[engine]))
        if floor is not None:
            limit = floor.cpu_s + 0.5
            yield Promise(case=COLD, engine=engine, what="CPU s to first call", measured=m.cpu_s, limit=limit)


def _ours(medians: Medians, case: Case) -> Iterator[tuple[Engine, Measurement]]:
    ours: tuple[Engine, ...] = ("inline", "ray")
    for engine in ours:
        if (case, engine) in medians:
            yield engine, medians[case, engine]
