"""The entry of `python -m roma_ray.solve`: a goal in, its answer on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

HELP = """\
Solve a goal with recursive agents on Ray.

  python -m roma_ray.solve goal="What grows faster, bamboo or kelp?"
  python -m roma_ray.solve goal_file=question.txt output=json
  echo "Compare …" | python -m roma_ray.solve lm.model=openai/gpt-4.1-mini
  python -m roma_ray.solve resume=RUN            go on with a run that did not end

what to do
  goal=TEXT            the goal, as it stands: quotes, commas and parentheses need no escape
  goal_file=PATH       read the goal from a file; without both it is read from a pipe
  resume=RUN           go on with a run (its id, or a unique beginning of it); limits may be given anew
  files=[A,B]          files that the goal is about
  approve=plan|final   wait for a person's word on every plan, or on the answer: roma-ray approve RUN
  dry_run=true         plan, estimate calls and cost, and stop
what comes out
  answer=short|text    how long the answer should be, or the path of a JSON schema that it must fit
  output=text          the answer alone on stdout; json: one document; markdown: answer, sources, notes
  verify=off|root|all  check the answer, or every node's, and revise it once if it is wrong
who answers
  lm.model=NAME        one model for all roles: provider/model, local, or auto (the provider whose key is set)
  lm.api_base=URL      any OpenAI-compatible endpoint, up to and including /v1
  agents.ROLE.lm.…     one role: atomizer, planner, executor, aggregator, verifier
  profile=NAME         a set of values from conf/profile or ~/.config/roma_ray/profile
how far
  limits.max_depth=3   levels of subtasks; also max_subtasks, max_nodes, max_lm_calls, max_tokens, max_cost_usd,
                       max_revisions, node_timeout_s, run_timeout_s
  cluster=auto         join Ray or start it; local: always start it; inline: no Ray, all in this process
for the record
  record=FILE          write all calls of the run to a file, when it is left
  replay=FILE          answer every call from such a file: no network, no key
  log.level=LEVEL      debug, info, warning or error, on stderr and in log.file=PATH
  traceback=true       the whole traceback of an error

`roma-ray config` lists every key with its value and source; the environment sets them too: ROMA_RAY_LM__MODEL=local.
Exit codes: 0 completed, 1 failed, 2 wrong usage, config, key or folder, 3 waiting for a person, 4 partial or at a
limit, 75 temporary (resume later), 130 interrupted (resume when you like).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Solve what `argv` (by default the command line) says; returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if any(arg in ("--help", "-h", "help") for arg in args):
        print(HELP, end="")
        return 0
    if "--version" in args:
        from roma_ray import __version__

        print(f"roma_ray {__version__}")
        return 0
    # Imported here, so that `--help` answers at once.
    from roma_ray.cli.solving import solve_command

    return solve_command(args)


if __name__ == "__main__":
    sys.exit(main())
