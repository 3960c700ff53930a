"""The config groups in conf/, read through Hydra's compose API."""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from roma_ray.errors import ConfigError

SECTIONS = ("cluster",)
"""Groups that fill the section of the same name: `cluster=inline` gives `cluster.mode` and what else is in the file."""

# Hydra keeps one global state per process.
_lock = threading.RLock()


def conf_folder() -> Path:
    """conf/ as the wheel carries it, else the one of the source tree. Raises ConfigError if neither is there."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"the config groups are missing from {package / 'conf'}", cure="install roma_ray again")


def read_root() -> dict[str, Any]:
    """What conf/config.yaml says, with the groups that it chooses by itself."""
    return _compose_once("config", conf_folder(), None, _changes(conf_folder()))


def read(group: str, choice: str, source: str, user_folder: Path | None = None) -> dict[str, Any]:
    """The content of `group`/`choice`.yaml from the user's own folder or conf/, as nested plain data.

    Raises ConfigError that lists the choices when there is no such file, or says what Hydra found wrong in it.
    """
    conf = conf_folder()
    folders = [user_folder, conf] if user_folder else [conf]
    for folder in folders:
        if (folder / group / f"{choice}.yaml").is_file():
            also = conf if folder != conf else user_folder
            return _compose_once(f"{group}/{choice}", folder, also, _changes(folder, also))
    choices = sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})
    raise ConfigError(f"{group}={choice} does not exist ({source})", cure=f"choose one of {', '.join(choices)}")


@lru_cache(maxsize=64)
def _compose_once(name: str, folder: Path, also: Path | None, changed_ns: tuple[int, ...]) -> dict[str, Any]:
    """`_compose`, once for each state of the files in the folders; the result is read, never changed."""
    return _compose(name, folder, also=also)


def _changes(*folders: Path | None) -> tuple[int, ...]:
    files = (file for folder in folders if folder for file in sorted(folder.rglob("*.yaml")))
    return tuple(file.stat().st_mtime_ns for file in files)


def _compose(name: str, folder: Path, *, also: Path | None) -> dict[str, Any]:
    """Compose `folder`/`name`.yaml; its defaults list may name files in `folder` and in `also`."""
    # Imported here: only a command that loads a config pays for Hydra.
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    search = [f"hydra.searchpath=[{_quoted(f'file://{also}')}]"] if also else []
    with _lock, initialize_config_dir(str(folder), job_name="roma_ray", version_base="1.3"):
        try:
            composed = OmegaConf.to_container(compose(name, overrides=search))
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise ConfigError(f"{name}.yaml: {' '.join(str(error).split())}", cure="correct that file") from error
    assert isinstance(composed, dict)
    return {str(key): value for key, value in composed.items()}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
