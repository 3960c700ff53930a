"""What Ray reads from the environment, some of it while it is imported: so this file comes first and imports no Ray."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from roma_ray.config.schema import ClusterConfig

LOCAL = "local"


def address_of(config: ClusterConfig) -> str:
    """Which cluster to join, or `local` to start one: never the last one that happens to run on this machine."""
    if config.mode == "local":
        return LOCAL
    return config.address or os.environ.get("RAY_ADDRESS") or LOCAL


def prepare_environment(config: ClusterConfig) -> None:
    """Set what Ray would otherwise guess; what the user has set stands.

    A token at hand is used: a cluster without authentication takes such a client too, one with it takes no other.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Under `uv run` Ray would upload the working folder and build an environment for every worker.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # Ray prints what it hears of dying processes to the driver's stdout, which belongs to the answer; they come out as
    # WorkerLost anyway. There is no switch for it but the filter of repeated lines.
    os.environ.update(RAY_DEDUP_LOGS="1", RAY_DEDUP_LOGS_SKIP_REGEX=".")
    if "RAY_AUTH_MODE" in os.environ:
        return
    if address_of(config) != LOCAL:
        if _has_token():
            os.environ["RAY_AUTH_MODE"] = "token"
    elif not _has_token():
        # A Ray that starts wants a token. It would write one into the user's home, and from then on every `ray` command
        # there would want it; this one lives as long as the process.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _has_token() -> bool:
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").exists()
