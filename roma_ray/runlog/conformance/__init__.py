"""What every database that holds the run log has to do, as checks that anybody can run against one of their own.

    report = await validate("postgresql://user:password@host/database")
    print(report)

or, on the command line, `python -m roma_ray.runlog.conformance URL`. The checks make runs of their own in the database
and remove them again; other runs in it are left alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from roma_ray.config.schema import RunlogConfig
from roma_ray.runlog.conformance import appending, holding, listing, mail
from roma_ray.runlog.conformance.bench import Bench, OpenLog
from roma_ray.runlog.log import RunLog

__all__ = ["CHECKS", "Bench", "Check", "OpenLog", "Report", "opener", "run", "validate"]

Check = Callable[[Bench], Awaitable[None]]

CHECKS: tuple[Check, ...] = (*appending.CHECKS, *holding.CHECKS, *mail.CHECKS, *listing.CHECKS)
"""Every check; its name is the sentence that it makes sure of. Raises AssertionError, or whatever went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Which checks passed, and why the others failed, by their sentence; printed, one line for each."""

    passed: tuple[str, ...]
    failed: dict[str, str]

    def __str__(self) -> str:
        return "\n".join(
            [f"ok      {name}" for name in self.passed] + [f"FAILED  {n}: {w}" for n, w in self.failed.items()]
        )


async def validate(url: str) -> Report:
    """Run all checks, one after another, against the run log at `url`; takes about twenty seconds."""
    passed, failed = list[str](), dict[str, str]()
    for check in CHECKS:
        name = check.__name__.replace("_", " ")
        try:
            await run(check, opener(url))
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
        else:
            passed.append(name)
    return Report(passed=tuple(passed), failed=failed)


async def run(check: Check, open_log: OpenLog) -> None:
    """Run one check against whatever `open_log` opens."""
    bench = Bench(open_log)
    try:
        await check(bench)
    finally:
        await bench.clear()


def opener(url: str) -> OpenLog:
    """What opens the run log at `url`."""

    async def open_log(lease_ttl_s: float) -> RunLog:
        return await RunLog.open(RunlogConfig(url=url), lease_ttl_s=lease_ttl_s)

    return open_log
