"""A disk that is full stops a run before anything more is spent; a file that is damaged is made anew for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from roma_ray.types import RunStatus
from tests.faults.books import request_of
from tests.faults.site import Site
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task
from tests.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.timeout(200)

GOAL = plan_goal(
    "the whole", task("part one"), task("part two EHOLD SIZE=60000"), task("part three", needs=[1]), task("part four")
)
HELD = ("executor", "part two EHOLD SIZE=60000")
FULL = 75


@pytest.fixture
def disk() -> Generator[SmallDisk]:
    with small_disk(2) as disk:
        yield disk


def fill(disk: SmallDisk) -> Path:
    """A file that takes all the room that is left."""
    ballast = disk.path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 512, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return ballast


@pytest.mark.parametrize("full", ["run log", "values"])
def test_a_full_disk_ends_the_spending_and_a_resume_goes_on_when_there_is_room(
    tmp_path: Path, scripted: Scripted, disk: SmallDisk, full: str
) -> None:
    log_folder, values_folder = (disk.path, tmp_path) if full == "run log" else (tmp_path, disk.path)
    site = Site(tmp_path, scripted, f"sqlite:///{log_folder / 'runs.db'}")
    site.environ["ROMA_RAY_STORAGE__BASE_PATH"] = str(values_folder)
    expected = site.unfaulted(GOAL)
    driver = site.start(f"goal={GOAL}")
    driver.wait_committed(scripted, answered=7, open_now=1)
    ballast, asked = fill(disk), scripted.stats()["requests"]
    scripted.release()
    code, document = driver.finish()
    assert (code, document["error"]["code"]) == (FULL, "R0310"), driver.stderr
    assert "make room" in document["error"]["cure"]
    assert scripted.stats()["requests"] == asked, "nothing was sent after the disk was seen to be full"

    ballast.unlink()
    (run_id,) = site.run_ids()
    assert site.status(run_id) is RunStatus.INTERRUPTED
    code, document = site.start(f"resume={run_id}").finish()
    assert (code, document["status"], document["output"]) == (0, "completed", expected)
    again = {request: n for request, n in Counter(map(request_of, scripted.log())).items() if n > 1}
    # The answer is in the log unless that was full.
    assert again == ({HELD: 2} if full == "run log" else {})


def test_a_value_that_was_cut_short_between_kill_and_resume_is_made_anew_and_never_passed_on(
    sqlite_site: Site, tmp_path: Path
) -> None:
    site = sqlite_site
    goal = plan_goal("the whole", task("part one SIZE=60000"), task("part two EHOLD"), task("part three", needs=[0, 1]))
    expected = site.unfaulted(goal)
    driver = site.start(f"goal={goal}")
    driver.wait_completed("root.0")
    driver.wait_committed(site.scripted, answered=5, open_now=1)
    driver.kill()
    (stored,) = tmp_path.glob("executions/*/results/*.parquet")
    whole = stored.read_bytes()
    stored.write_bytes(whole[: len(whole) // 2])
    site.scripted.release()
    code, document = site.start(f"resume={driver.run_id()}").finish()
    assert (code, document["output"]) == (0, expected)
    assert stored.read_bytes() == whole
    again = {request: n for request, n in Counter(map(request_of, site.scripted.log())).items() if n > 1}
    assert again == {("executor", "part two EHOLD"): 2}
