"""The typed config (schema) and its loading through Hydra (loading)."""

from roma_ray.config.loading import Loaded, load_config, shown, storable
from roma_ray.config.schema import (
    ROLES,
    AgentConfig,
    AgentsConfig,
    ClusterConfig,
    Config,
    ExecutorConfig,
    LimitsConfig,
    LmConfig,
    LogConfig,
    Price,
    Role,
    RunlogConfig,
    StorageConfig,
)
from roma_ray.config.sources import environment, home

__all__ = [
    "ROLES",
    "AgentConfig",
    "AgentsConfig",
    "ClusterConfig",
    "Config",
    "ExecutorConfig",
    "LimitsConfig",
    "LmConfig",
    "Loaded",
    "LogConfig",
    "Price",
    "Role",
    "RunlogConfig",
    "StorageConfig",
    "environment",
    "home",
    "load_config",
    "shown",
    "storable",
]
