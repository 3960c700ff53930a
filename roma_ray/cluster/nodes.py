"""Where workers can stand: the living Ray nodes, how many workers each may carry, and asking for more of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources

RESOURCE = "roma_ray"
"""Where any node declares this custom resource, workers are placed on those nodes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One living Ray node that workers may be placed on."""

    id: str
    cpus: int


async def usable_nodes() -> list[Node]:
    """The living nodes with at least one CPU; where some declare the resource `roma_ray`, only those."""
    alive = [row for row in await asyncio.to_thread(ray.nodes) if row["Alive"]]
    chosen = [row for row in alive if RESOURCE in row["Resources"]] or alive
    found = [Node(id=row["NodeID"], cpus=int(row["Resources"].get("CPU", 0))) for row in chosen]
    return [node for node in found if node.cpus > 0]


async def describe_nodes() -> str:
    """What the cluster has, in a few words, for an error that says what is missing."""
    rows: list[dict[str, Any]] = await asyncio.to_thread(ray.nodes)
    alive = [row for row in rows if row["Alive"]]
    cpus = sum(row["Resources"].get("CPU", 0) for row in alive)
    return f"{len(alive)} living node(s) with {cpus:g} CPU(s), {len(rows) - len(alive)} dead"


async def ask_for_cpus(count: int) -> None:
    """Ask the autoscaler, if there is one, for a cluster of at least `count` CPUs; 0 takes the wish back."""
    await asyncio.to_thread(request_resources, num_cpus=count)


def emptiest(nodes: Iterable[Node], workers_on: dict[str, int]) -> Node:
    """The node with the fewest workers per CPU."""
    return min(nodes, key=lambda node: workers_on.get(node.id, 0) / node.cpus)
