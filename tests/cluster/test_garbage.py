"""The collector looks less often while runs are at work, and as before when none is."""

from __future__ import annotations

import gc

from roma_ray.cluster.garbage import relaxed


def test_what_a_program_had_set_holds_again_after_its_last_run() -> None:
    before = gc.get_threshold()
    gc.set_threshold(555, 5, 5)
    try:
        with relaxed():
            with relaxed():
                pass
            assert gc.get_threshold()[0] > 10_000
        assert gc.get_threshold() == (555, 5, 5)
    finally:
        gc.set_threshold(*before)
