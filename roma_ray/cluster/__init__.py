"""Everything that knows where tasks run; `create_backend` is the way in, `backend.py` the seam."""

from __future__ import annotations

from roma_ray.cluster.backend import Backend, InputLost, Session, Task, TaskStream
from roma_ray.cluster.environment import prepare_environment
from roma_ray.cluster.inline import InlineBackend
from roma_ray.config.schema import ClusterConfig

__all__ = ["Backend", "InputLost", "Session", "Task", "TaskStream", "create_backend"]


def create_backend(config: ClusterConfig) -> Backend:
    """The backend that `config` asks for, not opened yet. Ray is imported only where it is used.

    Raises ConfigError when cluster=inline is combined with isolation.
    """
    if config.mode == "inline":
        return InlineBackend(config)
    prepare_environment(config)
    from roma_ray.cluster.ray_backend import RayBackend

    return RayBackend(config)
