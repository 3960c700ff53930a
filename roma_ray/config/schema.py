"""The typed config: every key that exists, its type, its bounds and its default. Each is read by some code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from roma_ray.types import PredictionStrategy, TaskType

Role = Literal["atomizer", "planner", "executor", "aggregator", "verifier"]
ROLES: tuple[Role, ...] = ("atomizer", "planner", "executor", "aggregator", "verifier")

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


_USER_INFO = re.compile(r"://(?:[^/?#\s]*|[^/\s]*:(?!\d*(?:/|$))\S*)@")
"""`user:password@` in an address; the second form has a password with `/`, `?` or `#` in it."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Price(_Section):
    """US dollars per million tokens, for a model that the price list does not know."""

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)


class LmConfig(_Section):
    """How one role reaches its model."""

    model: str = "auto"
    """`auto`, `local`, or `provider/model` such as `openai/gpt-4.1-mini`."""
    api_base: str | None = None
    """The URL of an OpenAI-compatible endpoint, up to and including `/v1`."""
    api_key: SecretStr | None = None
    use_env_key: bool = False
    """With an explicit api_base: send the provider's key from the environment there."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Count | None = None
    """Longest answer in tokens; None takes the role's default."""
    context_tokens: Count = 32_000
    """Tokens of a prompt that the inputs of a node may fill; what is longer is cut with a visible mark."""
    adapter: Literal["auto", "chat", "json"] = "auto"
    """How fields are asked for: marked text, or JSON with a schema where the endpoint obeys one."""
    cache: bool = False
    timeout_s: Seconds = 120.0
    max_retries: Annotated[int, Field(ge=0)] = 5
    max_concurrency: Count = 64
    """Requests open at once at one provider, in the whole cluster; fewer for a while after it refused one (429)."""
    requests_per_minute: Count | None = None
    """Of one provider, in the whole cluster."""
    tokens_per_minute: Count | None = None
    """Of one provider, in the whole cluster; an open request counts with its longest answer."""
    hedge: bool = False
    """Ask a second time when an answer takes longer than 95 % of those before; the first answer counts."""
    fallbacks: tuple[str, ...] = ()
    """Models to try in order when the first cannot be reached."""
    price: Price | None = None

    @field_validator("model", "fallbacks")
    @classmethod
    def _named(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for model in (value,) if isinstance(value, str) else value:
            if not model.strip("/ ") or model.strip() != model or model[0] == "/" or model[-1] == "/":
                raise ValueError(f"{model!r} names no model; write it as provider/model")
            _refuse_user_info(model)
        return value

    @field_validator("api_base")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        _refuse_user_info(value)
        url = urlsplit(value)
        # `port` raises ValueError by itself for one over 65535.
        if url.scheme not in ("http", "https") or not url.hostname or url.port == 0 or re.search(r"\s", value):
            raise ValueError("it is no address; write it as http://HOST:PORT/v1 or https://HOST/v1")
        return value


def _refuse_user_info(text: str) -> None:
    """An address is stored and shown, a key is neither."""
    if _USER_INFO.search(text):
        raise ValueError("an address may hold no user or password, since it is stored; give the key as lm.api_key")


_COUNTS = frozenset({"n", "m", "k", "max_iters"})
_NUMBERS = frozenset({"temperature", "threshold", "top_p"})
_SET_ELSEWHERE = frozenset(
    {
        "prediction_strategy",
        "lm",
        "model",
        "model_config",
        "tools",
        "adapter",
        "signature",
        "instructions",
        "demos",
        "context_defaults",
    }
)


class AgentConfig(_Section):
    """One role: its LM, with what `lm.*` says already merged in, and how it asks."""

    lm: LmConfig = LmConfig()
    strategy: str = "Predict"
    strategy_config: dict[str, Any] = {}
    instructions: str | None = None
    """Inline text, a `.jinja` file, or `module:VARIABLE`."""
    demos: str | None = None
    """`module:VARIABLE`, a list of dspy.Example."""

    @field_validator("strategy")
    @classmethod
    def _known(cls, value: str) -> str:
        return PredictionStrategy.parse(value).value

    @field_validator("strategy_config")
    @classmethod
    def _of_right_type(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, option in value.items():
            is_number = isinstance(option, int | float) and not isinstance(option, bool)
            if name.lower() in _COUNTS and not (is_number and option == int(option) and option >= 1):
                raise ValueError(f"{name}={option!r} is not a whole number above 0")
            if name in _NUMBERS and not is_number:
                raise ValueError(f"{name}={option!r} is not a number")
            if name in _SET_ELSEWHERE:
                raise ValueError(f"{name} is no option of a strategy")
        return value

    @property
    def samples(self) -> int | None:
        """How often a sampling strategy asks, where strategy_config says it: `n` or `m`, as DSPy spells it or small."""
        return next((self.strategy_config[name] for name in ("n", "N", "m", "M") if name in self.strategy_config), None)


class ExecutorConfig(AgentConfig):
    """The Executor, with what differs for single task types."""

    by_type: dict[TaskType, AgentConfig] = {}


class AgentsConfig(_Section):
    atomizer: AgentConfig = AgentConfig()
    planner: AgentConfig = AgentConfig()
    executor: ExecutorConfig = ExecutorConfig()
    aggregator: AgentConfig = AgentConfig()
    verifier: AgentConfig = AgentConfig()

    def of(self, role: Role, task_type: TaskType | None = None) -> AgentConfig:
        """The config of `role`; for the executor, that of `task_type` where there is one."""
        agent: AgentConfig = getattr(self, role)
        if role == "executor" and task_type is not None:
            return self.executor.by_type.get(task_type, agent)
        return agent


class LimitsConfig(_Section):
    """The shape of the tree, then what one run may spend."""

    max_depth: Annotated[int, Field(ge=0)] | None = None
    """Levels of subtasks below the goal. None: 3, with the embedded model 1."""
    max_subtasks: Count | None = None
    """Subtasks of one plan. None: 12, with the embedded model 4."""
    max_nodes: Count = 300
    max_lm_calls: Count | None = None
    max_tokens: Count | None = None
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    """None: 5 where the price of every model is known, no limit elsewhere."""
    max_revisions: Annotated[int, Field(ge=0)] = 1
    max_recoveries: Count = 5
    """Deaths of the run's own process, one after another and without getting further, before it is a dead letter."""
    node_timeout_s: Seconds = 900.0
    run_timeout_s: Seconds = 3600.0

    @property
    def depth(self) -> int:
        """max_depth as it applies."""
        return 3 if self.max_depth is None else self.max_depth

    @property
    def subtasks(self) -> int:
        """max_subtasks as it applies."""
        return 12 if self.max_subtasks is None else self.max_subtasks


class ClusterConfig(_Section):
    mode: Literal["auto", "local", "inline"] = "auto"
    """`auto` joins `address` or RAY_ADDRESS, else starts Ray; `local` always starts it; `inline` uses no Ray."""
    address: str | None = None
    isolation: Literal["shared", "process"] = "shared"
    """`process` runs every node in a process of its own."""
    process_types: tuple[TaskType, ...] = ()
    """Task types whose nodes run in a process of their own."""
    max_workers: Count | None = None
    """Worker processes at most; None: one per CPU of the cluster."""
    calls_per_worker: Count = 400
    """Node tasks in flight per worker before another one is started."""
    max_attempts: Count = 3
    """Deaths of a node that runs alone before it counts as failed."""
    dashboard: bool = False


class StorageConfig(_Section):
    base_path: str
    """Folder of execution folders and stored values."""
    inline_kb: Annotated[float, Field(ge=0)] = 32.0
    """Values up to this size travel in the run log; larger ones become Parquet."""


class RunlogConfig(_Section):
    # Not shown where the config is: it may hold a password.
    url: str = Field(repr=False)
    """`sqlite:///PATH`, `postgresql://USER:PASSWORD@HOST/DATABASE` or `memory://`."""
    durability: Literal["power", "process"] = "power"
    """`power` survives a power cut (fsync), `process` a kill."""
    prompts: Literal["full", "hash"] = "full"
    """Whether requests are kept whole or only by their hash."""


class LogConfig(_Section):
    level: Literal["debug", "info", "warning", "error"] = "warning"
    file: Path | None = None


class Config(_Section):
    """Everything that a run reads, loaded and merged."""

    goal: str | None = None
    goal_file: Path | None = None
    resume: str | None = None
    record: Path | None = None
    """The file that the run's whole traffic is written to when its process leaves it."""
    replay: Path | None = None
    """A recording that answers every call in the place of a model."""
    output: Literal["text", "json", "markdown"] = "text"
    profile: str | None = None
    verify: Literal["off", "root", "all"] = "off"
    approve: Literal["off", "plan", "final"] = "off"
    """Whether a person approves every plan, or the final answer, before the run goes on."""
    on_change: Literal["refuse", "fork", "accept"] = "refuse"
    """What a resume does where version, settings or code are not those that the run began with."""
    answer: str = "text"
    """`short`, `text`, or the path of a JSON schema that the answer must fit."""
    files: tuple[Path, ...] = ()
    dry_run: bool = False
    traceback: bool = False
    lm: LmConfig = LmConfig()
    """What `lm.*` says; already merged into each role's own `lm`."""
    agents: AgentsConfig = AgentsConfig()
    limits: LimitsConfig = LimitsConfig()
    cluster: ClusterConfig = ClusterConfig()
    storage: StorageConfig
    runlog: RunlogConfig
    log: LogConfig = LogConfig()
