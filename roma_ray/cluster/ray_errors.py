"""Ray's errors in our words: the task's own exception, a lost input, a lost process and a cancellation told apart."""

from __future__ import annotations

from ray import exceptions

from roma_ray.cluster.backend import InputLost
from roma_ray.errors import Cancelled, WorkerLost

_PROCESS_GONE = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError,
    exceptions.RaySystemError,
)
_DATA_GONE = (exceptions.ObjectLostError, exceptions.OutOfDiskError, exceptions.ObjectStoreFullError)


def task_error(error: exceptions.RayError, name: str, worker: str) -> BaseException:
    """What the stream of the task `name`, which ran on `worker`, raises for `error`."""
    if isinstance(error, exceptions.TaskCancelledError):
        return Cancelled(f"{name} was cancelled")
    if isinstance(error, exceptions.RayTaskError):
        cause = error.cause
        # Ray wraps the error that stands in place of an input, even when that was the death of the input's maker.
        if isinstance(cause, exceptions.RayError):
            return _input_lost(name, cause)
        return cause
    if isinstance(error, _DATA_GONE):
        return _input_lost(name, error)
    if isinstance(error, _PROCESS_GONE):
        return WorkerLost(f"{name} was lost with its process {worker or '(not started yet)'}: {first_line(error)}")
    return error


def fetch_error(error: exceptions.RayError) -> BaseException:
    """What `fetch` raises for `error`."""
    return _input_lost("a value", error) if isinstance(error, (*_PROCESS_GONE, *_DATA_GONE)) else error


def first_line(error: BaseException) -> str:
    """The first line of a message of many, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _input_lost(name: str, error: BaseException) -> InputLost:
    return InputLost(
        f"{name}: the object store does not have it any more ({type(error).__name__}: {first_line(error)})"
    )
