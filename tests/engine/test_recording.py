"""The file of a recording: what of a run's log goes into it, and what a replay reads from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roma_ray.config import StorageConfig
from roma_ray.engine.recording import Recording, read_recording, write_recording
from roma_ray.errors import FolderUnusable, UsageError, from_fault
from roma_ray.runlog.events import Event, EventType
from roma_ray.types import CallRecord, Fault, StepKey, Usage
from tests.engine.test_tree import Log, ok

ROOT = StepKey("root", "descend")
BUSY = Fault(code="R0301", message="busy")
STOPPED = Fault(code="R0500", message="stopped")


def started(log: Log, key: StepKey = ROOT) -> Log:
    return log.add(EventType.STEP_STARTED, key.node_id, step=str(key), worker="w")


def call(log: Log, key: str, ordinal: int = 0, *, answer: str = "", fault: Fault | None = None) -> Log:
    """A call of the root: answered, failed, or with neither answered from what the log had."""
    record = CallRecord(
        step=str(ROOT), role="executor", model="m", request_key=key, ordinal=ordinal, fault=fault,
        usage=Usage(lm_calls=1), request={"text": key}, response={"text": answer} if answer else None,
    )  # fmt: skip
    if fault is not None:
        return log.add(EventType.CALL_FAILED, "root", **record.to_plain())
    kind = EventType.CALL_ANSWERED if answer else EventType.CALL_CACHED
    return log.add(kind, "root", **replace(record, cached=not answer).to_plain())


def recorded(events: Sequence[Event], folder: Path) -> Recording:
    path = folder / "run.jsonl"
    write_recording(path, events, StorageConfig(base_path=str(folder)))
    return read_recording(path)


def answers(recording: Recording) -> dict[str, list[Any]]:
    """Per request key, in the order of asking: the answer's text, or the code of the fault."""
    known = recording.known(str(ROOT))
    return {key: [r.fault.code if r.fault else r.response["text"] for r in records] for key, records in known.items()}


def test_the_header_says_what_the_run_was_given(tmp_path: Path) -> None:
    log = Log()
    log.events[0].payload.update(config={"verify": "root"}, files=[{"name": "a.txt", "text": "A"}], answer_schema={})
    recording = recorded(log.events, tmp_path)
    assert (recording.run_id, recording.goal, recording.day) == ("r", "g", "2026-01-01")
    assert (recording.config, recording.answer_schema) == ({"verify": "root"}, {})
    assert recording.files == [{"name": "a.txt", "text": "A"}]


def test_the_header_holds_no_password_of_an_address(tmp_path: Path) -> None:
    log = Log()
    log.events[0].payload["config"] = {"lm": {"api_base": "https://user:hunter22@gw/v1"}}
    assert recorded(log.events, tmp_path).config == {"lm": {"api_base": "https://***@gw/v1"}}


def test_of_a_step_that_was_begun_again_only_what_its_last_attempt_saw_counts(tmp_path: Path) -> None:
    log = started(Log())
    call(log, "same", 0, answer="first")
    call(log, "only then", 0, answer="lost")
    # Its process died with `same` 1 open: the answers that follow have the numbers that the log did not have yet.
    call(started(log), "same", 0)
    call(log, "same", 2, answer="third").done(ROOT, ok("v"))
    assert answers(recorded(log.events, tmp_path)) == {"same": ["first", "third"]}


def test_a_value_that_was_made_anew_later_takes_nothing_away(tmp_path: Path) -> None:
    log = call(call(started(Log()), "decide", answer="EXECUTE"), "do", answer="done").done(ROOT, ok("v"))
    call(started(log), "do", 0)
    assert answers(recorded(log.events, tmp_path)) == {"decide": ["EXECUTE"], "do": ["done"]}


def test_a_step_that_was_done_again_after_its_end_is_recorded_with_the_answers_it_had_then(tmp_path: Path) -> None:
    log = call(call(started(Log()), "a", answer="old"), "b", answer="old").done(ROOT, ok("v"))
    call(call(started(log), "a", answer="new"), "b", answer="new")
    # Its process died once more: what it had asked is known by now.
    call(call(started(log), "a"), "b").done(ROOT, ok("w"))
    assert answers(recorded(log.events, tmp_path)) == {"a": ["new"], "b": ["new"]}


def test_a_fallbacks_answer_wins_over_the_failure_before_it_and_a_lasting_failure_stays(tmp_path: Path) -> None:
    log = call(call(started(Log()), "a", fault=BUSY), "a", answer="by the fallback")
    call(call(log, "b", 0, fault=BUSY), "b", 1, answer="later").done(ROOT, ok("v"))
    assert answers(recorded(log.events, tmp_path)) == {"a": ["by the fallback"], "b": ["R0301", "later"]}


def test_a_call_that_was_only_stopped_has_no_answer_to_replay(tmp_path: Path) -> None:
    recording = recorded(call(started(Log()), "a", fault=STOPPED).events, tmp_path)
    (record,) = recording.known(str(ROOT))["a"]
    assert record.fault is not None
    assert type(from_fault(record.fault)).__name__ == "ReplayDiffers" and "was stopped" in record.fault.message


def test_calls_of_any_kind_travel_and_words_of_people_too(tmp_path: Path) -> None:
    log = started(Log())
    # Some other type of event whose payload is a call: what is asked by a key is traffic.
    log.add(EventType.WARNING, "root", text="", step=str(ROOT), request_key="t", result=[1, 2])
    log.planned("root").add(EventType.APPROVAL_ASKED, "root", step=str(ROOT))
    log.events[-1].payload["kind"] = "plan"
    log.add(EventType.APPROVAL_ANSWERED, "root", step=str(ROOT), verdict="reject", words="no")
    recording = recorded(log.events, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [(line.get("result"), line.get("words")) for line in lines[1:]] == [([1, 2], None), (None, "no")]
    assert recording.words == {str(ROOT): {"step": str(ROOT), "verdict": "reject", "words": "no"}}


def test_it_tells_how_much_was_not_asked(tmp_path: Path) -> None:
    log = call(call(started(Log()), "a", answer="1"), "b", answer="2").done(ROOT, ok("v"))
    recording = recorded(log.events, tmp_path)
    assert recording.unused(log.events) == 0
    assert recording.unused(call(Log(), "a", answer="1").events) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "line 1 is no JSON object"),
        ("plain text", "line 1 is no JSON object"),
        ('{"goal": "g"}', "'no recording'"),
        ('{"format": "roma_ray recording 99"}', "'roma_ray recording 99'"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_the_reason(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "run.jsonl").write_text(content)
    with pytest.raises(UsageError, match=said):
        read_recording(tmp_path / "run.jsonl")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    recorded(call(started(Log()), "a", answer="1").events, tmp_path)
    path = tmp_path / "run.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UsageError, match="line 2 is no JSON object"):
        read_recording(path)


def test_a_recording_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("an earlier one")
    log = Log()
    log.events[0].payload["files"] = [{"name": "big", "text": "x" * (9 * 2**20)}]
    with pytest.raises(UsageError, match="8 MiB"):
        write_recording(path, log.events, StorageConfig(base_path=str(tmp_path)))
    with pytest.raises(FolderUnusable):
        write_recording(Path("/proc/nowhere/run.jsonl"), Log().events, StorageConfig(base_path=str(tmp_path)))
    assert path.read_text() == "an earlier one" and list(tmp_path.iterdir()) == [path]
