"""Which database a URL means."""

from __future__ import annotations

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from roma_ray.config.schema import RunlogConfig
from roma_ray.errors import ConfigError, ExtraMissing
from roma_ray.redact import Redactor
from roma_ray.runlog.database import Database
from roma_ray.runlog.sqlite import open_memory, open_sqlite

_SPELLINGS = "write it as sqlite:///PATH, postgresql://USER:PASSWORD@HOST/DATABASE or memory://"


def open_database(config: RunlogConfig) -> Database:
    """The database at `config.url`, made or upgraded where needed. Blocks. Raises as `RunLog.open` does."""
    shown = Redactor().text(config.url)
    try:
        url = make_url(config.url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"runlog.url {shown!r} is not a URL", cure=_SPELLINGS) from error
    match url.drivername:
        case "sqlite":
            return open_sqlite(url, config.durability)
        case "memory":
            return open_memory(url)
        case "postgresql" | "postgres" | "postgresql+psycopg":
            try:
                from roma_ray.runlog.postgres import open_postgres
            except ModuleNotFoundError as error:
                if error.name is None or error.name.partition(".")[0] != "psycopg":
                    raise
                raise ExtraMissing(
                    "runlog.url=postgresql://… needs the extra postgres", cure="pip install 'roma_ray[postgres]'"
                ) from error
            return open_postgres(url, config.durability)
        case other:
            raise ConfigError(f"runlog.url {other}:// is not supported", cure=_SPELLINGS)
