"""A run's whole traffic with models, tools and people as one file, and what a replay knows from it.

The file is JSON Lines. Its first line is the header: what the run was given. Then comes a line for every call and every
word of a person, in the order of the log: `type` and `node_id` of the event, its payload, and `superseded` where the
step was done once more later, so that this line has no part in what came out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from roma_ray.config import StorageConfig
from roma_ray.engine.files import BroughtFile
from roma_ray.engine.stored import value_store
from roma_ray.engine.tree import fold
from roma_ray.errors import Cancelled, FolderUnusable, ReplayDiffers, UsageError
from roma_ray.redact import Redactor
from roma_ray.runlog.events import Event, EventType
from roma_ray.storage.files import write_atomically
from roma_ray.texts import whole
from roma_ray.types import CallRecord, Fault, Json, StepKey

FORMAT = "roma_ray recording 1"

LARGEST_FILES_BYTES = 8 * 2**20
"""A recording holds the texts of the files that the goal is about, up to this size together."""

_Place = tuple[str, str, int]
"""Step, request key and ordinal: which call of a run it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording as it was read. `config` is the stored config of the recorded run, `files` are names and texts.

    `calls` holds, per step and request key, the calls that count in the order of their ordinals; `words` what a person
    said, per step, as the payload of `approval.answered`.
    """

    run_id: str
    goal: str
    day: str
    config: Mapping[str, Json]
    files: Sequence[Mapping[str, str]]
    answer_schema: Json
    calls: Mapping[str, Mapping[str, Sequence[CallRecord]]]
    words: Mapping[str, Mapping[str, Json]]

    def known(self, step: str) -> Mapping[str, Sequence[CallRecord]]:
        """The calls of one step as a call scope takes them: answered ones, and those that had failed for good."""
        return self.calls.get(step, {})

    def unused(self, events: Iterable[Event]) -> int:
        """How many recorded calls a replay with these events has not made."""
        made = {_place(event.payload) for event in events if _is_call(event.payload)}
        recorded = (call for keys in self.calls.values() for calls in keys.values() for call in calls)
        return sum(_place(call.to_plain()) not in made for call in recorded)


def write_recording(path: Path, events: Sequence[Event], config: StorageConfig) -> None:
    """Write the traffic of a run, given as all its events, whole or not at all.

    Raises FolderUnusable when `path` cannot be written, UsageError when the run's files are too large to travel,
    ValueLost when one of them is gone. It blocks.
    """
    lines = [_header(events, config), *_traffic(events)]
    data = b"".join(orjson.dumps(whole(line), option=orjson.OPT_APPEND_NEWLINE) for line in lines)
    try:
        write_atomically(path.expanduser(), data)
    except OSError as error:
        raise FolderUnusable(f"{path} cannot be written: {error.strerror}", cure=_ANOTHER_FILE) from error


def check_recordable(path: Path, files: Iterable[BroughtFile]) -> None:
    """Raises FolderUnusable or UsageError for what would keep a run from being recorded, before it has cost anything.

    The file itself is left as it is: it may be the recording of an earlier run.
    """
    sizes = [file.handle.size_bytes if file.handle else len((file.text or "").encode()) for file in files]
    _refuse_large(sum(sizes))
    target = path.expanduser()
    if target.is_dir():
        raise FolderUnusable(f"record={path} is a folder", cure=_ANOTHER_FILE)
    probe = target.with_name(f".{target.name}.probe")
    try:
        write_atomically(probe, b"")
        probe.unlink()
    except OSError as error:
        raise FolderUnusable(f"record={path} cannot be written: {error.strerror}", cure=_ANOTHER_FILE) from error


def read_recording(path: Path) -> Recording:
    """Read what `write_recording` wrote. Raises UsageError for a file that cannot be read or is no recording."""
    try:
        first, *rest = path.expanduser().read_bytes().splitlines() or [b""]
    except OSError as error:
        raise UsageError(f"replay={path}: {error.strerror}", cure="give the path of a recording") from error
    header = _parsed(path, 1, first)
    if header.get("format") != FORMAT:
        kind = header.get("format", "no recording")
        raise UsageError(f"replay={path}: this version reads {FORMAT!r}, and the file is {kind!r}", cure=_FROM_EXPORT)
    lines = [_parsed(path, number, raw) for number, raw in enumerate(rest, start=2)]
    return Recording(
        run_id=header["run_id"],
        goal=header["goal"],
        day=header["day"],
        config=header["config"],
        files=header["files"],
        answer_schema=header["answer_schema"],
        calls=_that_count(lines),
        words={line["step"]: _payload(line) for line in lines if line["type"] == EventType.APPROVAL_ANSWERED},
    )


_ANOTHER_FILE = "name a file in a folder that this user may write"
_FROM_EXPORT = "make one with record=FILE or `roma-ray export RUN --traffic FILE`"


# ---- writing


def _header(events: Sequence[Event], config: StorageConfig) -> dict[str, Json]:
    state = fold(events)
    return {
        "format": FORMAT,
        "version": state.version,
        "run_id": state.run_id,
        "goal": state.goal,
        "day": state.day,
        "config": Redactor().data(state.config),
        "files": list(_texts([BroughtFile.from_plain(file) for file in state.files], config, state.run_id)),
        "answer_schema": state.answer_schema,
    }


def _texts(files: Sequence[BroughtFile], config: StorageConfig, run_id: str) -> Iterator[dict[str, Json]]:
    total = 0
    for file in files:
        text: Any = value_store(config, run_id).get(file.handle) if file.handle else file.text
        total += len(text.encode())
        _refuse_large(total)
        yield {"name": file.name, "text": text}


def _refuse_large(size_bytes: int) -> None:
    if size_bytes > LARGEST_FILES_BYTES:
        raise UsageError(
            f"the run's files are larger than the {LARGEST_FILES_BYTES // 2**20} MiB that fit into a recording",
            cure="record a run with smaller files",
        )


def _traffic(events: Sequence[Event]) -> Iterator[dict[str, Json]]:
    counting = _seqs_that_count(events)
    responses: dict[_Place, Json] = {}
    for event in events:
        line: dict[str, Json] = {"type": event.type.value, "node_id": event.node_id, **event.payload}
        if _is_call(event.payload):
            # An answer that was known already stands in the log once; every line here is to be complete. A step that
            # was done once more may have another answer at the same place: what comes after that means the later one.
            response = line.get("response") or responses.get(_place(line))
            if response is not None and not line.get("fault"):
                responses[_place(line)] = line["response"] = response
            if event.seq not in counting:
                line["superseded"] = True
        elif event.type is not EventType.APPROVAL_ANSWERED:
            continue
        yield line


def _is_call(payload: Mapping[str, Json]) -> bool:
    """Whether it is a call, of a model or of anything else that is asked by a key."""
    return "request_key" in payload


def _place(call: Mapping[str, Json]) -> _Place:
    return call["step"], call["request_key"], call.get("ordinal", 0)


def _seqs_that_count(events: Sequence[Event]) -> set[int]:
    """The calls of that attempt at each step which brought its outcome, or of its last one where none has."""
    state = fold(events)
    attempt: dict[str, list[int]] = defaultdict(list)
    finished: dict[str, list[int]] = {}
    for event in events:
        step = event.payload.get("step", "")
        if event.type is EventType.STEP_STARTED:
            attempt[step] = []
        elif event.type is EventType.STEP_DONE:
            # A value that is made anew later starts the step, and does not end it, once more.
            finished[step] = attempt.pop(step, [])
        elif _is_call(event.payload):
            attempt[step].append(event.seq)
    done = {str(key) for key in state.outcomes}
    there = [step for step in {*attempt, *finished} if StepKey.parse(step).node_id in state.nodes]
    counting = (finished[s] if s in done else attempt.get(s, finished.get(s, [])) for s in there)
    return {seq for seqs in counting for seq in seqs}


# ---- reading


def _parsed(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    try:
        line = orjson.loads(raw)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        raise UsageError(f"replay={path}: line {number} is no JSON object", cure=_FROM_EXPORT)
    return line


def _payload(line: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in line.items() if name not in ("type", "node_id", "superseded")}


def _that_count(lines: Iterable[dict[str, Any]]) -> dict[str, dict[str, list[CallRecord]]]:
    """Per step and request key, one record for each ordinal, in order."""
    chosen: dict[_Place, CallRecord] = {}
    for line in lines:
        if not line["type"].startswith("call.") or line.get("superseded"):
            continue
        record, place = CallRecord.from_plain(_payload(line)), _place(line)
        # Where a fallback answered, the failure before it is past; of failures alone, the first was the step's.
        if record.response is not None or place not in chosen:
            chosen[place] = replace(record, fault=None if record.response is not None else _lasting(record))
    calls: dict[str, dict[str, list[CallRecord]]] = defaultdict(lambda: defaultdict(list))
    for step, key, ordinal in sorted(chosen):
        calls[step][key].append(chosen[step, key, ordinal])
    return {step: dict(keys) for step, keys in calls.items()}


def _lasting(record: CallRecord) -> Fault:
    """The fault of a call that has no answer. One that was only stopped did not fail: nobody knows its answer."""
    if record.fault is not None and record.fault.code != Cancelled.code:
        return record.fault
    who = f"{record.step} ({record.role})"
    return ReplayDiffers(f"{who} makes a request whose answer is not in the recording: the call was stopped").fault
