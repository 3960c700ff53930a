"""The config groups in conf/, read through Hydra's compose API."""

from __future__ import annotations

import threading
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
    return _compose("config", None)


def read(group: str, choice: str, source: str, user_folder: Path | None = None) -> dict[str, Any]:
    """The content of `group`/`choice`.yaml from conf/ or the user's own folder, as nested plain data.

    Raises ConfigError that lists the choices when there is no such file, or says what Hydra found wrong in it.
    """
    folders = [conf_folder(), *([user_folder] if user_folder else [])]
    choices = sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})
    if choice not in choices:
        raise ConfigError(f"{group}={choice} does not exist ({source})", cure=f"choose one of {', '.join(choices)}")
    return _compose(f"{group}/{choice}", user_folder)


def _compose(name: str, user_folder: Path | None) -> dict[str, Any]:
    # Imported here: only a command that loads a config pays for Hydra.
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    search = [f"hydra.searchpath=[{_quoted(f'file://{user_folder}')}]"] if user_folder else []
    with _lock, initialize_config_dir(str(conf_folder()), job_name="roma_ray", version_base="1.3"):
        try:
            composed = OmegaConf.to_container(compose(name, overrides=search))
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise ConfigError(f"{name}.yaml: {' '.join(str(error).split())}", cure="correct that file") from error
    assert isinstance(composed, dict)
    return {str(key): value for key, value in composed.items()}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
