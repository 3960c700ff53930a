"""What a backend keeps of its open sessions and running streams; both backends keep it the same way."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from roma_ray.cluster.backend import Session, Task


class Cancellable(Protocol):
    """A stream as its backend sees it."""

    def cancel(self) -> None:
        """Stop the task if it still runs."""


StreamT = TypeVar("StreamT", bound=Cancellable)


class Register(Generic[StreamT]):
    """Open sessions, and per session the streams that have not ended."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self._streams: dict[str, set[StreamT]] = {}
        self._is_closed = False

    def add_session(self, session: Session) -> None:
        """Raises RuntimeError when a session of this id is open or the backend is closed."""
        self._check_open()
        if session.id in self.sessions:
            raise RuntimeError(f"the session {session.id} is open already")
        self.sessions[session.id] = session
        self._streams[session.id] = set()

    def session_of(self, task: Task) -> Session:
        """The session that `task` names. Raises RuntimeError when it is not open or the backend is closed."""
        self._check_open()
        if task.session_id not in self.sessions:
            raise RuntimeError(
                f"the task {task.name} was submitted to the session {task.session_id}, which is not open"
            )
        return self.sessions[task.session_id]

    def add_stream(self, session_id: str, stream: StreamT) -> None:
        self._streams[session_id].add(stream)

    def drop_stream(self, session_id: str, stream: StreamT) -> None:
        """The stream has ended; nothing happens when its session is closed already."""
        self._streams.get(session_id, set()).discard(stream)

    def close_session(self, session_id: str) -> list[StreamT]:
        """Forget the session and cancel its streams, which are returned; none when it is not open."""
        self.sessions.pop(session_id, None)
        streams = list(self._streams.pop(session_id, ()))
        for stream in streams:
            stream.cancel()
        return streams

    def close(self) -> None:
        """Refuse every later session and task."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the backend is closed: nothing can be submitted to it any more")
