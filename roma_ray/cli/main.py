"""The `roma-ray` command: what it offers; each command's work is in a file of its own, loaded when it is called."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer import Argument, Option

from roma_ray.cli.exits import ended

app = typer.Typer(
    name="roma-ray",
    help="Look at runs, models and the config of roma_ray. To solve a goal: python -m roma_ray.solve goal=…",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
model_app = typer.Typer(help="The embedded model, which answers when no key is set.", no_args_is_help=True)
app.add_typer(model_app, name="model")

Json = Annotated[bool, Option("--json", help="One JSON document on stdout.")]
Overrides = Annotated[list[str] | None, Argument(metavar="[KEY=VALUE]…", help="Config overrides, as for solve.")]
Name = Annotated[str, Argument(help="A name of `roma-ray model list`.")]


@app.command()
def runs(
    overrides: Overrides = None,
    limit: Annotated[int, Option("--limit", "-n", min=1, help="How many runs at most, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    from roma_ray.cli.runs import list_runs

    list_runs(overrides or [], limit=limit, as_json=as_json)


@app.command()
def show(
    run: Annotated[str, Argument(help="A run id, or any unique beginning of one.")],
    node: Annotated[str | None, Argument(help="A node such as root.2: its prompts and answers.")] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show a run's tree and answer, or one node with its model calls."""
    from roma_ray.cli.show import show_node, show_run

    # `show RUN runlog.url=…` has no node.
    given = [*([node] if node and "=" in node else []), *(overrides or [])]
    if node is None or "=" in node:
        show_run(run, given, as_json=as_json)
    else:
        show_node(run, node, given, as_json=as_json)


@app.command()
def config(
    overrides: Overrides = None,
    everything: Annotated[bool, Option("--all", help="Also what roles and types only inherit.")] = False,
    as_json: Json = False,
) -> None:
    """Show every config value and where it came from; secrets are masked."""
    from roma_ray.cli.config import show_config

    show_config(overrides or [], everything=everything, as_json=as_json)


@app.command()
def explain(code: Annotated[str, Argument(help="An error code such as R0101.")], as_json: Json = False) -> None:
    """Explain an error code and how to cure it."""
    from roma_ray.cli.explain import explain_code

    explain_code(code, as_json=as_json)


@model_app.command("list")
def model_list(as_json: Json = False) -> None:
    """List the models that can be embedded, and which are here."""
    from roma_ray.cli.model import list_models

    list_models(as_json=as_json)


@model_app.command("get")
def model_get(name: Name = "default") -> None:
    """Fetch a model once and check it; prints where it lies."""
    from roma_ray.cli.model import get_model

    get_model(name)


@model_app.command("path")
def model_path(name: Name = "default") -> None:
    """Print where a model lies; exit code 1 when it is not here."""
    from roma_ray.cli.model import print_path

    print_path(name)


@model_app.command("remove")
def model_remove(name: Name = "default") -> None:
    """Delete a model's file."""
    from roma_ray.cli.model import remove_model

    remove_model(name)


def main() -> None:
    """Run the command of this process and exit with its code."""
    sys.exit(ended(app))
