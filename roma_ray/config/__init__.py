"""The typed config (schema) and its loading through Hydra (loading)."""

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

__all__ = [
    "ROLES",
    "AgentConfig",
    "AgentsConfig",
    "ClusterConfig",
    "Config",
    "ExecutorConfig",
    "LimitsConfig",
    "LmConfig",
    "LogConfig",
    "Price",
    "Role",
    "RunlogConfig",
    "StorageConfig",
]
