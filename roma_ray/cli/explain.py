"""`roma-ray explain CODE`."""

from __future__ import annotations

import inspect

from roma_ray.cli.output import print_json
from roma_ray.errors import BY_CODE, RomaError, UsageError


def explain_code(code: str, *, as_json: bool) -> None:
    """Print what the error `code` (in any case, with or without the R) means. Raises UsageError for an unknown one."""
    wanted = "R" + code.strip().upper().removeprefix("R")
    error = BY_CODE.get(wanted)
    if error is None:
        raise UsageError(f"no error has the code {code}", cure=f"one of {', '.join(sorted(BY_CODE))}")
    meaning = inspect.getdoc(error) or ""
    if as_json:
        print_json({"code": wanted, "name": error.__name__, "meaning": meaning, **_facts(error)})
        return
    print(f"{wanted} {error.__name__}: {meaning}")
    print(f"cure: {error.default_cure}")
    print(f"exit code: {error.exit_code}")


def _facts(error: type[RomaError]) -> dict[str, str | int]:
    return {"cure": error.default_cure, "exit_code": error.exit_code}
