"""`roma-ray export RUN --traffic FILE`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from roma_ray.config import load_config


def export_traffic(run: str, path: Path, overrides: Sequence[str]) -> None:
    """Write the traffic of a run to `path`, for `replay=PATH`."""
    from roma_ray import api

    run_id = asyncio.run(api.export_traffic(load_config(overrides).config, run, path))
    print(f"run {run_id} is recorded in {path}; replay: python -m roma_ray.solve replay={path}", file=sys.stderr)
