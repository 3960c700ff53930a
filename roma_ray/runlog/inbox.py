"""What other processes leave for the coordinator of a run: they never append to its log themselves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from roma_ray.clock import now_s
from roma_ray.errors import RunNotFound
from roma_ray.runlog.codec import decode, encode
from roma_ray.runlog.schema import inbox, runs
from roma_ray.types import Json, RunStatus

CANCEL = "cancel"
"""The kind of message that asks for the end of a run; it means nothing to one that has ended."""
APPROVE = "approve"
"""The kind of message that answers what a run asked a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxMessage:
    """What another process sent to the coordinator of a run; `id` grows with time and never comes back."""

    id: int
    time_s: float
    kind: str
    payload: dict[str, Json]


def put(connection: Connection, run_id: str, token: str, kind: str, payload: dict[str, Json]) -> None:
    """Leave a message, once for each token; a cancel of a run that has ended is dropped. Raises RunNotFound."""
    # Locked, so that the ids of a run's messages grow in the order in which they can be seen.
    query = select(runs.c.status).where(runs.c.run_id == run_id).with_for_update()
    status = connection.execute(query).scalar()
    if status is None:
        raise RunNotFound(f"there is no run {run_id}")
    if kind == CANCEL and RunStatus(status).is_end:
        return
    if connection.execute(select(inbox.c.id).where(inbox.c.token == token)).first() is None:
        values = {"run_id": run_id, "token": token, "time_s": now_s(), "kind": kind, "payload": encode(payload)}
        connection.execute(insert(inbox).values(values))


def waiting(connection: Connection, run_ids: Collection[str]) -> list[tuple[str, InboxMessage]]:
    """The messages of these runs, each with its run, oldest first."""
    query = select(inbox).where(inbox.c.run_id.in_(run_ids)).order_by(inbox.c.id)
    return [(row.run_id, _message(row)) for row in connection.execute(query)]


def remove(connection: Connection, message_id: int) -> None:
    """Forget one message."""
    connection.execute(delete(inbox).where(inbox.c.id == message_id))


def remove_up_to(connection: Connection, run_id: str, message_id: int) -> None:
    """Forget a run's messages up to this one."""
    connection.execute(delete(inbox).where((inbox.c.run_id == run_id) & (inbox.c.id <= message_id)))


def remove_cancels(connection: Connection, run_id: str) -> None:
    """Forget what asked for the end of a run, so that it does not hit whoever resumes it."""
    connection.execute(delete(inbox).where((inbox.c.run_id == run_id) & (inbox.c.kind == CANCEL)))


def _message(row: Row[Any]) -> InboxMessage:
    return InboxMessage(id=row.id, time_s=row.time_s, kind=row.kind, payload=decode(row.payload))
