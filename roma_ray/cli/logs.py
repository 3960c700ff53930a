"""Where roma_ray's own log lines go: stderr at `log.level`, and the whole of it to `log.file`."""

from __future__ import annotations

import logging
import sys

from roma_ray.config import LogConfig
from roma_ray.errors import FolderUnusable

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def start_logging(config: LogConfig) -> None:
    """Set the `roma_ray` logger up once per process; the root logger is left alone.

    Raises FolderUnusable when `log.file` cannot be written.
    """
    log = logging.getLogger("roma_ray")
    log.propagate = False
    log.setLevel(logging.DEBUG if config.file else config.level.upper())
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setLevel(config.level.upper())
    handlers: list[logging.Handler] = [to_stderr]
    if config.file is not None:
        try:
            handlers.append(logging.FileHandler(config.file, encoding="utf-8"))
        except OSError as error:
            raise FolderUnusable(f"log.file={config.file}: {error.strerror}", cure="choose another file") from error
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
    for old in log.handlers:
        old.close()
    log.handlers = handlers
