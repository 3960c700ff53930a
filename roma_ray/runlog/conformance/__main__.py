"""`python -m roma_ray.runlog.conformance URL`: exits 1 when a check failed."""

from __future__ import annotations

import asyncio
import sys

from roma_ray.runlog.conformance import validate

if len(sys.argv) != 2:
    sys.exit("usage: python -m roma_ray.runlog.conformance URL")
report = asyncio.run(validate(sys.argv[1]))
print(report)
sys.exit(bool(report.failed))
