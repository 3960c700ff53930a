"""What only Ray can show: processes that die, processes of their own, lost objects, names."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray

from roma_ray.cluster import Backend, InputLost, Session, Task
from roma_ray.errors import WorkerLost
from roma_ray.redact import Secret
from tests.cluster import work
from tests.cluster.conftest import session_in, until

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.ray]


@pytest_asyncio.fixture(loop_scope="session")
async def session(ray_backend: Backend, tmp_path: Path) -> AsyncIterator[Session]:
    session = session_in(tmp_path)
    await ray_backend.open_session(session)
    yield session
    await ray_backend.close_session(session.id)


def task_of(session: Session, fn: Any, request: Any = None, *, isolate: bool = False) -> Task:
    return Task(name=f"{fn.__name__}:root.0", session_id=session.id, fn=fn, request=request, isolate=isolate)


async def run(backend: Backend, task: Task, inputs: Any = ()) -> Any:
    async with backend.submit(task, inputs) as stream:
        events = [event async for batch in stream for event in batch]
    return events, stream.outcome, stream.value


async def two_workers(backend: Backend, session: Session) -> None:
    """Come back when tasks are spread over two processes."""
    async with asyncio.timeout(60):
        while True:
            ran = await asyncio.gather(*(run(backend, task_of(session, work.sleep, 0.05)) for _ in range(8)))
            if len({events[0] for events, _, _ in ran}) == 2:
                return


async def test_a_killed_worker_takes_only_its_own_tasks_and_is_replaced(
    ray_backend: Backend, session: Session, tmp_path: Path
) -> None:
    await two_workers(ray_backend, session)
    started: asyncio.Queue[tuple[int, asyncio.Task[Any]]] = asyncio.Queue()

    async def one() -> str:
        async with ray_backend.submit(task_of(session, work.until_file, "go"), ()) as stream:
            async for batch in stream:
                started.put_nowait((batch[0], asyncio.current_task()))  # type: ignore[arg-type]
        return stream.outcome

    tasks = [asyncio.create_task(one()) for _ in range(10)]
    on: dict[int, list[asyncio.Task[Any]]] = {}
    for _ in tasks:
        pid, task = await started.get()
        on.setdefault(pid, []).append(task)
    victim, survivor = on
    os.kill(victim, signal.SIGKILL)
    lost = await asyncio.wait_for(asyncio.gather(*on[victim], return_exceptions=True), 15)
    assert {type(error) for error in lost} == {WorkerLost}
    assert str(victim) in str(lost[0])
    assert not any(task.done() for task in on[survivor])

    assert (await run(ray_backend, task_of(session, work.nothing)))[1] != victim
    (tmp_path / "go").touch()
    assert await asyncio.gather(*on[survivor]) == ["seen"] * len(on[survivor])
    await two_workers(ray_backend, session)
    assert len(set(work.marks(tmp_path, "setup"))) == 3


async def test_an_isolated_task_is_the_same_task_in_a_process_of_its_own(
    ray_backend: Backend, session: Session, tmp_path: Path
) -> None:
    _, _, text = await run(ray_backend, task_of(session, work.text, 50_000))
    events, _, _ = await run(ray_backend, task_of(session, work.sleep, 0.0, isolate=True))
    assert events[0] not in {(await run(ray_backend, task_of(session, work.nothing)))[1], os.getpid()}
    assert work.marks(tmp_path, "teardown") == events
    _, _, value = await run(ray_backend, task_of(session, work.echo, isolate=True), [text, 1])
    assert await ray_backend.fetch(value) == ["x" * 50_000, 1]
    with pytest.raises(KeyError, match="a bug"):
        await run(ray_backend, task_of(session, work.fail, isolate=True))


async def test_cancelling_an_isolated_task_runs_its_clean_up(
    ray_backend: Backend, session: Session, tmp_path: Path
) -> None:
    async with ray_backend.submit(task_of(session, work.sleep, 60, isolate=True), ()) as stream:
        await anext(aiter(stream))
    await until(lambda: work.marks(tmp_path, "finally"))
    await until(lambda: work.marks(tmp_path, "teardown"))


async def test_the_death_of_an_isolated_process_is_a_lost_worker(ray_backend: Backend, session: Session) -> None:
    async with ray_backend.submit(task_of(session, work.sleep, 60, isolate=True), ()) as stream:
        batches = aiter(stream)
        os.kill((await anext(batches))[0], signal.SIGKILL)
        with pytest.raises(WorkerLost):
            await asyncio.wait_for(anext(batches), 15)


@pytest.mark.parametrize("isolate", [False, True])
async def test_an_input_that_is_gone_is_told_apart_from_a_lost_worker(
    ray_backend: Backend, session: Session, isolate: bool
) -> None:
    events, outcome, _ = await run(ray_backend, task_of(session, work.own_object))
    os.kill(events[0], signal.SIGKILL)
    await asyncio.sleep(1)  # Until Ray knows of the death, another process may still find the object.
    with pytest.raises(InputLost):
        await run(ray_backend, task_of(session, work.length, isolate=isolate), [outcome["reference"]])
    with pytest.raises(InputLost):
        await ray_backend.fetch(outcome["reference"])


async def test_a_secret_of_the_set_up_is_in_no_log_and_no_name(ray_backend: Backend, tmp_path: Path) -> None:
    argument = (tmp_path, Secret("sk-very-secret"))
    session = replace(session_in(tmp_path), setup=work.setup_with_secret, argument=argument)
    await ray_backend.open_session(session)
    assert (await run(ray_backend, task_of(session, work.reveal)))[1] == "sk-very-secret"
    await ray_backend.close_session(session.id)
    logs = {
        path: path.read_bytes()
        for path in Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[1].rglob("logs/**/*.*")
    }
    assert any(b"Secret('***')" in text for text in logs.values())
    assert not [path for path, text in logs.items() if b"sk-very-secret" in text]


async def test_another_program_joins_the_cluster_that_ray_address_names(ray_backend: Backend, tmp_path: Path) -> None:
    address = ray.get_runtime_context().gcs_address
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster.program", "auto", str(tmp_path)),
        cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": address},
        stdout=asyncio.subprocess.PIPE,
    )
    assert (await program.communicate())[0].decode() == f"{address}\n"
    assert program.returncode == 0


async def test_the_value_of_a_worker_that_died_since_is_still_there(ray_backend: Backend, session: Session) -> None:
    _, pid, _ = await run(ray_backend, task_of(session, work.nothing))
    values = [(await run(ray_backend, task_of(session, work.text, letters)))[2] for letters in (10, 500_000)]
    os.kill(pid, signal.SIGKILL)
    assert [len(await ray_backend.fetch(value)) for value in values] == [10, 500_000]
