"""What a program calls: solve a goal, resume a run, look at runs and steer them."""

from roma_ray.api.recordings import areplay, export_traffic, replay
from roma_ray.api.runs import list_runs, load_events, load_result, load_state, prune
from roma_ray.api.solving import aresume, asolve, rerun, resume, solve
from roma_ray.api.steering import Delivery, approve, cancel, open_approvals
from roma_ray.engine.result import Result
from roma_ray.engine.run import OnEvent

__all__ = [
    "Delivery",
    "OnEvent",
    "Result",
    "approve",
    "areplay",
    "aresume",
    "asolve",
    "cancel",
    "export_traffic",
    "list_runs",
    "load_events",
    "load_result",
    "load_state",
    "open_approvals",
    "prune",
    "replay",
    "rerun",
    "resume",
    "solve",
]
