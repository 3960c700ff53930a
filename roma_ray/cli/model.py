"""`roma-ray model`: the embedded model's weights."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from roma_ray.cli.output import print_columns, print_json
from roma_ray.lm import local_model
from roma_ray.types import Json


def list_models(*, as_json: bool) -> None:
    """Print every model that can be embedded: its name, size, licence, and where it lies if it is here."""
    models = [(info, local_model.find(info.name)) for info in local_model.available()]
    if as_json:
        print_json([_document(info, path) for info, path in models])
        return
    rows = [
        (info.name, info.title, f"{info.size_bytes / 1e9:.2f} GB", info.licence, str(path or "not here"))
        for info, path in models
    ]
    print_columns([("NAME", "MODEL", "SIZE", "LICENCE", "WHERE"), *rows])


def _document(info: local_model.ModelInfo, path: Path | None) -> dict[str, Json]:
    return {
        "name": info.name,
        "title": info.title,
        "size_bytes": info.size_bytes,
        "licence": info.licence,
        "sha256": info.sha256,
        "path": str(path) if path else None,
    }


def get_model(name: str) -> None:
    """Fetch the model `name` if it is not here, with progress on stderr, and print its path."""
    print(local_model.get(name, progress=lambda line: print(line, file=sys.stderr, flush=True)))


def print_path(name: str) -> None:
    """Print where the model `name` lies; exits with 1 when it is not here."""
    path = local_model.find(name)
    if path is None:
        print(f"{name} is not here - fetch it with `roma-ray model get {name}`", file=sys.stderr)
        raise typer.Exit(1)
    print(path)


def remove_model(name: str) -> None:
    """Delete the file of the model `name`; exits with 1 when there was none."""
    if not local_model.remove(name):
        print(f"{name} is not here", file=sys.stderr)
        raise typer.Exit(1)
    print(f"{name} is removed", file=sys.stderr)
