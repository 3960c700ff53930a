"""What both backends promise."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roma_ray.cluster import Backend, Session, Task
from roma_ray.errors import Cancelled
from tests.cluster import work
from tests.cluster.conftest import session_in, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def run(backend: Backend, session: Session, fn: Any, request: Any = None, inputs: Sequence[Any] = ()) -> Any:
    """The events, the outcome and the value's reference of one task."""
    async with backend.submit(Task(name=fn.__name__, session_id=session.id, fn=fn, request=request), inputs) as stream:
        events = [event async for batch in stream for event in batch]
    return events, stream.outcome, stream.value


async def test_events_arrive_while_the_task_still_runs(backend: Backend, session: Session, tmp_path: Path) -> None:
    task = Task(name="wait", session_id=session.id, fn=work.wait_for_file, request="go")
    async with backend.submit(task, ()) as stream:
        batches = aiter(stream)
        assert await anext(batches) == [0]
        (tmp_path / "go").touch()
        assert [event async for batch in batches for event in batch] == [1, 2]
        assert stream.outcome == "seen"
        assert "@" in stream.worker


async def test_events_keep_their_order_and_batches_are_never_empty(backend: Backend, session: Session) -> None:
    async with backend.submit(Task(name="count", session_id=session.id, fn=work.count, request=500), ()) as stream:
        batches = [batch async for batch in stream]
    assert all(batches)
    assert [event for batch in batches for event in batch] == list(range(500))


async def test_the_outcome_is_there_only_after_the_end(backend: Backend, session: Session) -> None:
    async with backend.submit(Task(name="echo", session_id=session.id, fn=work.echo, request=1), ()) as stream:
        with pytest.raises(RuntimeError, match="read to the end"):
            _ = stream.outcome
        async for _ in stream:
            pass
        assert stream.outcome == 1


@pytest.mark.parametrize("letters", [3, 50_000, 5_000_000])
async def test_a_value_reaches_another_task_by_its_reference(backend: Backend, session: Session, letters: int) -> None:
    _, outcome, reference = await run(backend, session, work.text, letters)
    assert outcome == {"letters": letters}
    assert (await run(backend, session, work.length, inputs=[reference, "four", reference]))[1] == [letters, 4, letters]
    assert await backend.fetch(reference) == "x" * letters


async def test_plain_values_and_nothing_are_inputs_too(backend: Backend, session: Session) -> None:
    _, _, none = await run(backend, session, work.nothing)
    _, outcome, reference = await run(backend, session, work.echo, {"a": 1}, [none, [1, 2], {"k": "v"}, None])
    assert outcome == {"a": 1}
    assert await backend.fetch(reference) == [None, [1, 2], {"k": "v"}, None]


async def test_what_a_task_raises_comes_out_as_itself_after_its_events(backend: Backend, session: Session) -> None:
    events: list[Any] = []
    with pytest.raises(KeyError, match="a bug") as caught:
        async with backend.submit(Task(name="fail", session_id=session.id, fn=work.fail, request=None), ()) as stream:
            async for batch in stream:
                events += batch
    assert type(caught.value) is KeyError
    assert events == ["before"]


async def test_leaving_early_cancels_the_task_and_its_clean_up_runs(
    backend: Backend, session: Session, tmp_path: Path
) -> None:
    task = Task(name="sleep", session_id=session.id, fn=work.sleep, request=60)
    async with backend.submit(task, ()) as stream:
        await anext(aiter(stream))
    await until(lambda: work.marks(tmp_path, "finally"))


async def test_closing_a_session_ends_its_streams_and_tears_it_down(backend: Backend, tmp_path: Path) -> None:
    session = session_in(tmp_path)
    await backend.open_session(session)
    stream = backend.submit(Task(name="sleep", session_id=session.id, fn=work.sleep, request=60), ())
    batches = aiter(stream)
    await anext(batches)
    await backend.close_session(session.id)
    with pytest.raises(Cancelled):
        await anext(batches)
    assert len(work.marks(tmp_path, "finally")) == 1
    assert sorted(work.marks(tmp_path, "teardown")) == sorted(work.marks(tmp_path, "setup"))
    with pytest.raises(RuntimeError, match="is not open"):
        backend.submit(Task(name="late", session_id=session.id, fn=work.echo, request=1), ())


async def test_a_session_is_set_up_once_per_process_however_many_tasks_start_at_once(
    backend: Backend, session: Session, tmp_path: Path
) -> None:
    done = await asyncio.gather(*(run(backend, session, work.nothing) for _ in range(30)))
    pids = {outcome for _, outcome, _ in done}
    set_up = work.marks(tmp_path, "setup")
    assert pids <= set(set_up)
    assert len(set_up) == len(set(set_up))


async def test_a_failing_set_up_is_told_to_every_task(backend: Backend, tmp_path: Path) -> None:
    session = replace(session_in(tmp_path), setup=work.broken_setup)
    await backend.open_session(session)
    told = await asyncio.gather(*(run(backend, session, work.nothing) for _ in range(5)), return_exceptions=True)
    assert [(type(error), str(error)) for error in told] == [(LookupError, "no such model")] * 5
    set_up = work.marks(tmp_path, "setup")
    assert len(set_up) == len(set(set_up))
    await backend.close_session(session.id)
    assert not work.marks(tmp_path, "teardown")


async def test_two_sessions_at_once_do_not_mix(backend: Backend, tmp_path: Path) -> None:
    sessions = []
    for name in "ab":
        (tmp_path / name).mkdir()
        sessions.append(replace(session_in(tmp_path / name), id=f"{tmp_path.name}-{name}"))
        await backend.open_session(sessions[-1])
    done = await asyncio.gather(*(run(backend, sessions[i % 2], work.own_folder) for i in range(20)))
    assert [outcome for _, outcome, _ in done] == [str(tmp_path / "ab"[i % 2]) for i in range(20)]
    for session in sessions:
        await backend.close_session(session.id)


async def test_two_hundred_streams_at_once_all_wait_at_the_same_time(
    backend: Backend, session: Session, tmp_path: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        started = asyncio.Semaphore(0)

        async def one() -> None:
            task = Task(name="wait", session_id=session.id, fn=work.wait_for_file, request="go")
            async with backend.submit(task, ()) as stream:
                batches = aiter(stream)
                assert await anext(batches) == [0]
                started.release()
                assert [event async for batch in batches for event in batch] == [1, 2]

        for _ in range(200):
            group.create_task(one())
        for _ in range(200):
            await started.acquire()
        (tmp_path / "go").touch()


async def test_a_backend_knows_on_how_many_machines_it_runs(backend: Backend) -> None:
    assert backend.machines == 1


async def test_a_backend_knows_how_many_workers_it_may_have(backend: Backend) -> None:
    assert backend.workers >= 1


async def test_workers_know_how_long_the_owner_of_a_session_is_believed_to_live(
    backend: Backend, session: Session, tmp_path: Path
) -> None:
    assert (await run(backend, session, work.heard_for))[1] is None
    (tmp_path / "owned").mkdir()
    owned = replace(session_in(tmp_path / "owned"), id=f"{tmp_path.name}-owned", renew=work.renew, ttl_s=100.0)
    await backend.open_session(owned)
    assert 90 < (await run(backend, owned, work.heard_for))[1] < 100
    backend.renew_session(owned.id, 1000.0)
    async with asyncio.timeout(10):
        while (await run(backend, owned, work.heard_for))[1] < 900:
            await asyncio.sleep(0.01)
    await backend.close_session(owned.id)
    backend.renew_session(owned.id, 1.0)


async def test_what_is_left_of_a_promise_counts_from_when_it_was_made(backend: Backend, tmp_path: Path) -> None:
    owned = replace(session_in(tmp_path), setup=work.slow_setup, renew=work.renew, ttl_s=100.0)
    await backend.open_session(owned)
    assert (await run(backend, owned, work.heard_for))[1] < 99.5
    await backend.close_session(owned.id)
