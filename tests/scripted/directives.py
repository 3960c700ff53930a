"""The directives that a goal may carry, and helpers that write such goals.

Which plan comes back (and thereby, that the Atomizer says PLAN):
    N=k               k independent subtasks
    CHAIN=k           k subtasks, each needs the one before
    TREE=b:d          b children, each a TREE=b:(d-1), atomic at d = 1
    DEEP              two children, each DEEP: never ends by itself
    PLAN[json]PLAN    {"subtasks": [...], "dependencies_graph"?: {...}}; goals in it may carry directives of their own
    PLANRAW<<...>>    the fields subtasks and dependencies_graph exactly as given (JSON, or any text for `subtasks`)
    PLANRAW2<<...>>   the same for the second ask and those after it

What the others say:
    ASAYS=true:PLAN   the Atomizer's is_atomic and node_type, however they fit
    ESAY<<text>>      the Executor's output; GSAY<<text>> the Aggregator's
    SIZE=bytes        pads the Executor's output
    SRC=a,b           the Executor's sources
    TOOL=name TOOLARGS<<json>>    the tool that a tool loop calls, instead of the first one
    VERDICT=false[:n] the Verifier's verdict, for the first n asks

Faults, after a role letter: A, P, E, G (aggregator) or V. `n` uses up a fault after n answers; several faults are used
in the order in which they are written; each counts per role and goal.
    EFAIL=500[:n[:retry_after_s]]   that status; or a word: context, quota (429 that no waiting cures), broke (no money)
    EMALFORMED EEMPTY ETRUNCATED EECHO EWRONGTYPES EDROP, each with [:n]
    EHANG=seconds[:n] a very late answer
Together with any of them:
    ELAT=seconds      this latency instead of the server's
    EHOLD             no answer before /release
    ETHINK            the answer wrapped in think tags and code fences
    EWINDOW=tokens    a longer prompt gets context_length_exceeded
FAIL=, HANG= and LAT= without a letter hold for every role.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_BLOCK_EDGE = re.compile(r"PLAN\[|\]PLAN|\b(?:PLANRAW2?|ESAY|GSAY|TOOLARGS)<<|>>")
_FAULT = re.compile(
    r"(?<!\w)(?:([APEGV]?)(FAIL|HANG|LAT)|([APEGV])(WINDOW))=(\d+(?:\.\d+)?|[a-z]+)(?::(\d*))?(?::(\d+(?:\.\d+)?))?"
    r"|(?<!\w)([APEGV])(MALFORMED|TRUNCATED|EMPTY|ECHO|THINK|WRONGTYPES|DROP|HOLD)(?::(\d+))?(?!\w)"
)
_WORD = re.compile(r"(?<!\w)(N|CHAIN|TREE|SIZE|SRC|TOOL|VERDICT|ASAYS)=([^\s;]+)|(?<!\w)(DEEP)(?!\w)")
_MARK = re.compile(r"@([0-9a-f]{8}[\d.]*)")

ROLE_LETTERS = {"A": "atomizer", "P": "planner", "E": "executor", "G": "aggregator", "V": "verifier"}
MODIFIERS = ("LAT", "HOLD", "THINK", "WINDOW")
_PLANS = ("PLANRAW", "PLAN", "N", "CHAIN", "TREE", "DEEP")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `letter` is empty where it holds for every role, `times` None where it never ends."""

    letter: str
    kind: str
    value: str = ""
    times: int | None = None
    retry_after_s: float | None = None

    def concerns(self, role: str) -> bool:
        return not self.letter or ROLE_LETTERS[self.letter] == role


@dataclass(frozen=True, slots=True)
class Directives:
    """What one goal asks of the server. `text` is the goal without its blocks."""

    text: str
    words: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    @property
    def plans(self) -> bool:
        return any(name in self.words or name in self.blocks for name in _PLANS)


@lru_cache(maxsize=4096)
def read_directives(goal: str) -> Directives:
    """The directives in `goal`; those inside a plan belong to its subtasks and are not read here."""
    text, blocks = _cut_blocks(goal)
    words = {m[1] or m[3]: (m[2] or "").rstrip(".,") for m in _WORD.finditer(text)}
    return Directives(text, words, blocks, tuple(_fault(m) for m in _FAULT.finditer(text)))


def _cut_blocks(goal: str) -> tuple[str, dict[str, str]]:
    rest: list[str] = []
    blocks: dict[str, str] = {}
    depth, opened, end = 0, "", 0
    for edge in _BLOCK_EDGE.finditer(goal):
        closing = edge[0] in ("]PLAN", ">>")
        if not closing and depth == 0:
            rest.append(goal[end : edge.start()])
            opened, end = edge[0].rstrip("[<"), edge.end()
        depth = max(depth - 1, 0) if closing else depth + 1
        if closing and depth == 0 and opened:
            blocks[opened] = goal[end : edge.start()]
            opened, end = "", edge.end()
    rest.append(goal[end:])
    return " ".join(part.strip() for part in rest if part.strip()), blocks


def _fault(match: re.Match[str]) -> Fault:
    any_role, valued, one_role, window, value, times, retry_after_s, letter, plain, plain_times = match.groups()
    if plain:
        return Fault(letter, plain, times=int(plain_times) if plain_times else None)
    return Fault(
        any_role or one_role or "",
        valued or window,
        value,
        int(times) if times else None,
        float(retry_after_s) if retry_after_s else None,
    )


def plan_of(goal: str, ask_number: int) -> tuple[Any, Any]:
    """The `subtasks` and `dependencies_graph` for the `ask_number`-th ask (from 1) with this goal."""
    directives = read_directives(goal)
    words, blocks = directives.words, directives.blocks
    if raw := (blocks.get("PLANRAW2") if ask_number > 1 else None) or blocks.get("PLANRAW"):
        return _raw_plan(raw)
    if "PLAN" in blocks:
        plan = json.loads(blocks["PLAN"])
        return [_full_task(item) for item in plan["subtasks"]], plan.get("dependencies_graph")
    mark = _MARK.search(goal)
    base = mark[1] if mark else digest(goal)
    if "N" in words:
        return [_task(f"Part {i} @{base}.{i}") for i in range(int(words["N"]))], {}
    if "CHAIN" in words:
        links = [_task(f"Link {i} @{base}.{i}") for i in range(int(words["CHAIN"]))]
        return links, {str(i): [str(i - 1)] for i in range(1, len(links))}
    if "TREE" in words:
        breadth, _, depth = words["TREE"].partition(":")
        below = f" TREE={breadth}:{int(depth) - 1}" if int(depth) > 1 else ""
        return [_task(f"Branch {i}{below} @{base}.{i}") for i in range(int(breadth))], {}
    if "DEEP" in words:
        return [_task(f"DEEP {i} @{base}.{i}") for i in range(2)], {}
    return [_task(f"All of it @{base}.0")], {}


def _raw_plan(raw: str) -> tuple[Any, Any]:
    try:
        payload = json.loads(raw)
    except ValueError:
        return raw, None
    return payload.get("subtasks"), payload.get("dependencies_graph")


def _full_task(item: Any) -> Any:
    return {"task_type": "THINK", "dependencies": [], **item} if isinstance(item, dict) else _task(item)


def _task(goal: str) -> dict[str, Any]:
    return {"goal": goal, "task_type": "THINK", "dependencies": []}


def digest(goal: str) -> str:
    """Eight hex digits that stand for a goal, whatever its white space."""
    return hashlib.sha256(" ".join(goal.split()).encode()).hexdigest()[:8]


def out_token(goal: str) -> str:
    """How the Executor's answer to `goal` can be recognised wherever it is passed on."""
    return f"OUT-{digest(goal)}"


def syn_token(goal: str) -> str:
    """How the Aggregator's answer to `goal` can be recognised wherever it is passed on."""
    return f"SYN-{digest(goal)}"


def task(goal: str, *, needs: Sequence[int] = (), task_type: str = "THINK") -> dict[str, Any]:
    """A subtask for `plan_goal`; `needs` are positions in the same plan."""
    return {"goal": goal, "task_type": task_type, "dependencies": [str(i) for i in needs]}


def plan_goal(text: str, *tasks: dict[str, Any] | str) -> str:
    """A goal that the server plans into exactly `tasks`, whose goals may again come from `plan_goal`."""
    return f"{text} PLAN[{json.dumps({'subtasks': tasks})}]PLAN"
