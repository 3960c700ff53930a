"""How a run stands: what its events say, put right where its process died before it could say that it left."""

from __future__ import annotations

from roma_ray.engine.state import RunState
from roma_ray.engine.tree import apply, fold
from roma_ray.runlog.events import Event, EventType
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus


async def read_run(log: RunLog, run: str) -> tuple[RunState, list[Event]]:
    """How the run that `run`, an id or a unique beginning of one, names stands, and its events. Raises RunNotFound."""
    run_id = await log.find(run)
    # Its row first: a holder that leaves in between has written its last event before it gives the row up.
    row = await log.run(run_id)
    events = await log.read(run_id)
    state = fold(events)
    if state.status is RunStatus.RUNNING and row.status is not RunStatus.RUNNING:
        interrupt(state)
    return state, events


def interrupt(state: RunState) -> None:
    """Make of a state whose run nobody holds what it would be, had its last process left in order."""
    event = Event(
        run_id=state.run_id,
        seq=state.seq,
        epoch=state.epoch,
        time_s=state.started_at or 0.0,
        type=EventType.RUN_ENDED,
        node_id="",
        payload={"status": RunStatus.INTERRUPTED.value, "wall_s": state.epoch_ran_s},
    )
    apply(state, event)
    # When it died, nobody knows.
    state.ended_at = None
