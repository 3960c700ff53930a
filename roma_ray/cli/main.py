"""The `roma-ray` command: what it offers; each command's work is in a file of its own, loaded when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Exit, Option

from roma_ray.cli.completion import run_ids
from roma_ray.cli.exits import ended
from roma_ray.cli.groups import ListingGroup, QuietGroup

app = typer.Typer(
    name="roma-ray",
    cls=QuietGroup,
    help="Look at runs and steer them; models and config. To solve a goal: python -m roma_ray.solve goal=…",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs_app = typer.Typer(cls=ListingGroup, help="List runs (`runs list`, or `runs` alone), or remove old ones.")
app.add_typer(runs_app, name="runs")
model_app = typer.Typer(help="The embedded model, which answers when no key is set.", no_args_is_help=True)
app.add_typer(model_app, name="model")

Json = Annotated[bool, Option("--json", help="JSON on stdout.")]
Overrides = Annotated[list[str] | None, Argument(metavar="[KEY=VALUE]…", help="Config overrides, as for solve.")]
Name = Annotated[str, Argument(help="A name of `roma-ray model list`.")]
Run = Annotated[str, Argument(help="A run id, or any unique beginning of one.", autocompletion=run_ids)]
OlderThan = Annotated[str, Option("--older-than", help="How long ago they ended: 90s, 45m, 12h, 30d, 2w.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only say which runs would go.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]


# ---- looking at runs


@runs_app.command("list")
def runs_list(
    overrides: Overrides = None,
    limit: Annotated[int, Option("--limit", "-n", min=1, help="How many runs at most, newest first.")] = 20,
    watch: Annotated[bool, Option("--watch", "-w", help="Keep the list up to date, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    from roma_ray.cli.runs import list_runs, watch_runs

    (watch_runs if watch else list_runs)(overrides or [], limit=limit, as_json=as_json)


@app.command()
def show(
    run: Run,
    node: Annotated[str | None, Argument(help="A node such as root.2: its prompts and answers.")] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show a run's tree and answer, or one node with its model calls."""
    from roma_ray.cli.show import show_node, show_run

    name, given = _name_or_override(node, overrides)
    if name is None:
        show_run(run, given, as_json=as_json)
    else:
        show_node(run, name, given, as_json=as_json)


@app.command()
def tree(
    run: Run,
    overrides: Overrides = None,
    watch: Annotated[bool, Option("--watch", "-w", help="Follow it, until no process drives the run.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run's tree, live with --watch."""
    from roma_ray.cli.tree import print_tree, watch_tree

    (watch_tree if watch else print_tree)(run, overrides or [], as_json=as_json)


@app.command()
def diff(
    before: Run,
    after: Annotated[str, Argument(help="The run to compare it with.", autocompletion=run_ids)],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show in which respects two runs differ."""
    from roma_ray.cli.diff import print_diff

    print_diff(before, after, overrides or [], as_json=as_json)


# ---- steering runs


@app.command()
def resume(run: Run, overrides: Overrides = None) -> None:
    """Go on with a run that did not complete."""
    from roma_ray.cli.solving import solve_command

    raise Exit(solve_command([f"resume={run}", *(overrides or [])]))


@app.command()
def cancel(
    run: Run,
    overrides: Overrides = None,
    reason: Annotated[str, Option("--reason", help="Why; it becomes part of the run.")] = "",
    as_json: Json = False,
) -> None:
    """Cancel a run, whichever process drives it."""
    from roma_ray.cli.steering import cancel_run

    cancel_run(run, overrides or [], reason=reason, as_json=as_json)


@app.command()
def approve(
    run: Run,
    item: Annotated[str | None, Argument(metavar="[ID]", help="A node that waits, such as root.1.")] = None,
    overrides: Overrides = None,
    reject: Annotated[str | None, Option("--reject", metavar="WORDS", help="Send it back with these words.")] = None,
    edit: Annotated[str | None, Option("--edit", metavar="FILE", help="Put this in its place; - is stdin.")] = None,
    show: Annotated[bool, Option("--show", help="Only print it, in the form that --edit takes.")] = False,
    as_json: Json = False,
) -> None:
    """Answer what a run waits for; without ID, list it.

    With no option the plan or the final answer is approved as it is.
    """
    from roma_ray.cli.steering import answer_approval, list_approvals, show_approval

    name, given = _name_or_override(item, overrides)
    if name is None and reject is None and edit is None:
        list_approvals(run, given, as_json=as_json)
    elif name is None:
        raise typer.BadParameter("say which one, by the ID that `roma-ray approve RUN` lists", param_hint="ID")
    elif show:
        show_approval(run, name, given, as_json=as_json)
    else:
        answer_approval(run, name, given, reject=reject, edit=edit, as_json=as_json)


@app.command()
def rerun(
    run: Run,
    node: Annotated[str, Option("--from", metavar="NODE", help="The node to begin at, such as root.2.")],
    goal: Annotated[str | None, Option("--goal", help="Another goal for that node.")] = None,
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Another setting.")] = None,
) -> None:
    """Do a run anew from one node, as a new run.

    It keeps everything that is not downstream of that node.
    """
    from roma_ray.cli.solving import rerun_command

    raise Exit(rerun_command(run, node=node, goal=goal, overrides=settings or []))


@app.command()
@runs_app.command()
def prune(
    older_than: OlderThan,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove runs that ended long ago, with their files."""
    from roma_ray.cli.prune import prune_runs

    prune_runs(overrides or [], older_than=older_than, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def export(
    run: Run,
    traffic: Annotated[Path, Option("--traffic", metavar="FILE", help="For `replay=FILE`.")],
    overrides: Overrides = None,
) -> None:
    """Write a run's traffic to a file that can be replayed."""
    from roma_ray.cli.export import export_traffic

    export_traffic(run, traffic, overrides or [])


# ---- the installation


@app.command()
def config(
    overrides: Overrides = None,
    everything: Annotated[bool, Option("--all", help="Also what roles and types only inherit.")] = False,
    as_json: Json = False,
) -> None:
    """Show every config value and where it came from."""
    from roma_ray.cli.config import show_config

    show_config(overrides or [], everything=everything, as_json=as_json)


@app.command()
def doctor(
    overrides: Overrides = None,
    ray: Annotated[bool, Option("--ray", help="Also start or join Ray, which takes seconds.")] = False,
    as_json: Json = False,
) -> None:
    """Try what a solve needs; exit code 1 when something failed."""
    from roma_ray.cli.doctor import run_doctor

    raise Exit(run_doctor(overrides or [], ray=ray, as_json=as_json))


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


def _name_or_override(name: str | None, overrides: list[str] | None) -> tuple[str | None, list[str]]:
    """A name that may be left out, apart from the overrides after it: `show RUN runlog.url=…` has no node."""
    if name is not None and "=" in name:
        return None, [name, *(overrides or [])]
    return name, overrides or []
