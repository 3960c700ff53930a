"""The example for `ray up`, checked by Ray's own rules without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from roma_ray.cluster.nodes import RESOURCE

FILE = Path(__file__).parents[2] / "cluster.yaml"


def loaded() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def test_ray_accepts_the_cluster_file() -> None:
    config = prepare_config(loaded())
    validate_config(config)
    assert config["available_node_types"][config["head_node_type"]]["resources"]["CPU"] == 0


def test_the_check_would_notice_a_mistake() -> None:
    with pytest.raises(ValueError, match="head_node_type"):
        validate_config(prepare_config(loaded() | {"head_node_type": "heat"}))


def test_its_versions_and_its_resource_are_those_of_the_package() -> None:
    lock = (FILE.parent / "requirements.lock").read_text()
    version = next(line.split("==")[1].split(";")[0].strip() for line in lock.splitlines() if line.startswith("ray"))
    assert loaded()["docker"]["image"] == f"rayproject/ray:{version}-py311"
    assert RESOURCE in loaded()["available_node_types"]["worker"]["resources"]
