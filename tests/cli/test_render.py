"""The tree as text."""

from __future__ import annotations

import io
import time
from dataclasses import replace

from roma_ray.cli.live import LinesView
from roma_ray.cli.render import seconds, tree_lines, usage_text
from roma_ray.engine.state import Node, RunState
from roma_ray.runlog.events import EventType
from roma_ray.types import NodeStatus, PlannedTask, Usage
from tests.engine.test_tree import Log


def tree(width: int, *, failed: int | None = None) -> RunState:
    """A root with `width` completed children, one of which may have failed."""
    ids = tuple(f"root.{i}" for i in range(width))
    state = RunState()
    state.nodes["root"] = Node(id="root", goal="all of it", children=ids, status=NodeStatus.RUNNING)
    for i, node_id in enumerate(ids):
        status = NodeStatus.FAILED if i == failed else NodeStatus.COMPLETED
        state.nodes[node_id] = Node(id=node_id, goal=f"part {i} " + "x" * 300, parent="root", status=status)
    return state


def test_every_node_is_one_line_within_the_width() -> None:
    lines = [line.branch + line.text for line in tree_lines(tree(3), width=80)]
    assert len(lines) == 4 and all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("▸ root") and lines[3].startswith("└─ ✓ root.2")


def test_a_tree_larger_than_the_screen_keeps_what_failed_and_counts_the_rest() -> None:
    lines = [line.text for line in tree_lines(tree(1_000, failed=777), width=80, most=10)]
    assert len(lines) == 11
    assert any("root.777" in line and "failed" in line for line in lines)
    assert lines[-1] == "… and 991 more nodes"


def test_a_chain_a_thousand_deep_is_drawn() -> None:
    state = RunState()
    for depth in range(1_000):
        node_id = "root" + ".0" * depth
        parent = "root" + ".0" * (depth - 1) if depth else ""
        children = (f"{node_id}.0",) if depth < 999 else ()
        state.nodes[node_id] = Node(id=node_id, goal="deeper", parent=parent, children=children)
    assert len(tree_lines(state, width=80, most=20)) == 21


def test_durations_and_usage_read_well() -> None:
    assert [seconds(s) for s in (0.04, 9.94, 12.2, 185, 7_800)] == [
        "0.0 s",
        "9.9 s",
        "12 s",
        "3 min 05 s",
        "2 h 10 min",
    ]
    usage = Usage(
        lm_calls=12, failed_calls=1, cached_calls=2, prompt_tokens=3_000, completion_tokens=400, cost_usd=0.0123
    )
    assert usage_text(usage) == "12 calls (1 failed, 2 known), 3,400 tokens, $0.0123"
    assert usage_text(Usage(lm_calls=1, cost_usd=None)) == "1 call, 0 tokens, price unknown"


def test_what_a_node_waits_for_stands_beside_it() -> None:
    state = tree(2)
    state.nodes["root.0"] = replace(state.nodes["root.0"], status=NodeStatus.RUNNING, waits_for="rate limit of x: 9 s")
    state.nodes["root.1"] = replace(state.nodes["root.1"], status=NodeStatus.WAITING)
    _, first, second = (line.text for line in tree_lines(state))
    assert first.endswith("running  waits for rate limit of x: 9 s") and second.endswith("waits for approval")


def test_a_pause_that_holds_up_every_node_is_one_line_and_so_is_a_question() -> None:
    out = io.StringIO()
    view = LinesView(out)
    log = Log().planned("root", PlannedTask(goal="a"), PlannedTask(goal="b"))
    for seconds_left in (12, 11, 10):
        for node in ("root.0", "root.1"):
            reason = f"rate limit of x: {seconds_left} s"
            log.add(EventType.CALL_WAITING, node, step=f"{node}/descend~0", role="executor", reason=reason)
    log.add(EventType.APPROVAL_ASKED, "root", step="root/descend~0").events[-1].payload["kind"] = "plan"
    for event in log.events:
        view.on_event(replace(event, time_s=event.time_s + time.time()))
    said = [line.partition("] ")[2] for line in out.getvalue().splitlines()]
    assert said[-2:] == [
        "root.0 waits for rate limit of x: 12 s",
        "root waits for approval of its plan: roma-ray approve r root",
    ]
