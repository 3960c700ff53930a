"""Two ways in which our commands differ from what typer does by itself."""

from __future__ import annotations

import sys
from typing import Any

from typer import Exit
from typer.core import TyperGroup

from roma_ray.cli.exits import write_no_more


class QuietGroup(TyperGroup):
    """Ends in peace when whoever reads stdout has gone, as with `| head`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            write_no_more(sys.stdout)
            raise Exit(0) from None


class ListingGroup(TyperGroup):
    """A group whose `list` needs no name: `runs --json` is `runs list --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names, "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)
