"""Who is dead, and who only seems so."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from dataclasses import replace

import pytest

from roma_ray.runlog.owner import Owner, is_dead, start_of, this_process


@pytest.fixture
def child() -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def owner(process: subprocess.Popen[bytes]) -> Owner:
    return replace(this_process(), pid=process.pid, start=start_of(process.pid) or "")


def test_a_process_is_dead_once_killed_even_before_its_parent_has_noticed(child: subprocess.Popen[bytes]) -> None:
    it = owner(child)
    assert not is_dead(it)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(it)
    child.wait()
    assert is_dead(it)


def test_a_pid_that_came_back_is_another_process(child: subprocess.Popen[bytes]) -> None:
    assert is_dead(replace(owner(child), start="12345"))


def test_what_runs_where_one_cannot_look_is_never_called_dead(child: subprocess.Popen[bytes]) -> None:
    gone = replace(owner(child), start="12345")
    assert not is_dead(replace(gone, host="elsewhere"))
    assert not is_dead(replace(gone, boot="another boot or container"))
