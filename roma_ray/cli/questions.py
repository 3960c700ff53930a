"""What a run waits for a person to say, and the commands that say it."""

from __future__ import annotations

from collections.abc import Iterator

from roma_ray.cli.render import cut
from roma_ray.engine.state import Approval, RunState


def question(approval: Approval) -> str:
    """What is waited for, in a few words: `root.1 waits for approval of its plan`."""
    what = "its plan" if approval.kind == "plan" else "the final answer"
    return f"{approval.key.node_id} waits for approval of {what}"


def question_lines(state: RunState) -> Iterator[str]:
    """For each open approval, what is waited for and how it is answered."""
    for approval in state.open_approvals:
        command = answer_command(state.run_id, approval)
        yield f"{question(approval)}: {cut(state.nodes[approval.key.node_id].goal, 70)}"
        yield f"    {command}"
        yield f'    {command} --reject "what has to be different"'
        yield f"    {command} --show > answer.yaml; edit it; {command} --edit answer.yaml"


def answer_command(run_id: str, approval: Approval) -> str:
    """The command that approves."""
    return f"roma-ray approve {run_id} {approval.key.node_id}"


def resume_command(run_id: str) -> str:
    """The command that goes on with a run."""
    return f"python -m roma_ray.solve resume={run_id}"
