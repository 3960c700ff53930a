"""Which source wins, and that the config says which it was."""

from __future__ import annotations

from tests.config.conftest import Machine

USER_FILE = "~/.config/roma_ray/config.yaml"


def test_each_source_beats_the_one_before_it(machine: Machine, value) -> None:
    assert value("limits.max_nodes") == (300, "default")
    machine.write(USER_FILE, "limits: {max_nodes: 1}\nprofile: mine\n")
    machine.write("~/.config/roma_ray/profile/mine.yaml", "# @package _global_\nlog: {level: info}\n")
    assert value("limits.max_nodes") == (1, str(machine.home / ".config/roma_ray/config.yaml"))
    machine.write("~/.config/roma_ray/profile/mine.yaml", "# @package _global_\nlimits: {max_nodes: 2}\n")
    assert value("limits.max_nodes") == (2, "profile mine")
    machine.write(".env", "ROMA_RAY_LIMITS__MAX_NODES=3\n")
    assert value("limits.max_nodes") == (3, ".env ROMA_RAY_LIMITS__MAX_NODES")
    machine.variables["ROMA_RAY_LIMITS__MAX_NODES"] = "4"
    assert value("limits.max_nodes") == (4, "environment ROMA_RAY_LIMITS__MAX_NODES")
    assert value("limits.max_nodes", "limits.max_nodes=5") == (5, "command line")


def test_the_profile_named_by_the_highest_source_is_the_one_that_counts(machine: Machine, value) -> None:
    for name, depth in (("one", 1), ("two", 2)):
        machine.write(
            f"~/.config/roma_ray/profile/{name}.yaml", f"# @package _global_\nlimits: {{max_depth: {depth}}}\n"
        )
    machine.variables["ROMA_RAY_PROFILE"] = "one"
    assert value("limits.max_depth") == (1, "profile one")
    assert value("limits.max_depth", "profile=two") == (2, "profile two")


def test_lm_on_the_command_line_overrides_what_lower_sources_say_of_single_roles(machine: Machine, value) -> None:
    machine.write(USER_FILE, "agents: {planner: {lm: {model: openai/from-file, temperature: 0.5}}}\n")
    assert value("agents.planner.lm.model", "lm.model=openai/all") == ("openai/all", "command line, as lm.model")
    assert value("agents.planner.lm.temperature", "lm.model=openai/all")[0] == 0.5


def test_within_one_source_the_specific_key_wins_whatever_the_order(value) -> None:
    overrides = ("agents.planner.lm.model=openai/planner", "lm.model=openai/all")
    assert value("agents.planner.lm.model", *overrides) == ("openai/planner", "command line")
    assert value("agents.verifier.lm.model", *overrides) == ("openai/all", "command line, as lm.model")


def test_a_task_type_takes_everything_that_it_does_not_say_itself_from_the_executor(machine: Machine) -> None:
    config = machine.load(
        "lm.timeout_s=7",
        "agents.executor.lm.temperature=0.3",
        "agents.executor.strategy=BestOfN",
        "agents.executor.strategy_config.n=3",
        "agents.executor.by_type.retrieve.lm.model=openai/search",
    ).config
    retrieve = config.agents.of("executor", "RETRIEVE")  # type: ignore[arg-type]
    assert (retrieve.lm.model, retrieve.lm.timeout_s, retrieve.lm.temperature) == ("openai/search", 7, 0.3)
    assert (retrieve.strategy, retrieve.strategy_config) == ("BestOfN", {"n": 3})


def test_settings_of_a_strategy_do_not_outlive_the_strategy(machine: Machine) -> None:
    machine.write(USER_FILE, "agents: {executor: {strategy: BestOfN, strategy_config: {n: 3}}}\n")
    config = machine.load("agents.executor.by_type.WRITE.strategy=Predict").config
    assert config.agents.executor.strategy_config == {"n": 3}
    assert config.agents.of("executor", "WRITE").strategy_config == {}  # type: ignore[arg-type]


def test_choosing_a_cluster_group_and_a_key_of_it_at_once_gives_both(machine: Machine, value) -> None:
    assert value("cluster.mode") == ("auto", "default")
    assert value("cluster.mode", "cluster=local", "cluster.isolation=process") == (
        "local",
        "command line: cluster=local",
    )
    assert value("cluster.isolation", "cluster.isolation=process", "cluster=local")[0] == "process"
    machine.variables["ROMA_RAY_CLUSTER"] = "inline"
    assert value("cluster.mode")[0] == "inline"


def test_everything_is_kept_in_one_folder_that_a_variable_moves(machine: Machine, value) -> None:
    home = machine.home / ".roma_ray"
    assert value("storage.base_path")[0] == str(home)
    assert value("runlog.url")[0] == f"sqlite:///{home}/runs.db"
    machine.variables["ROMA_RAY_HOME"] = "/elsewhere"
    assert value("runlog.url") == ("sqlite:////elsewhere/runs.db", "default in ROMA_RAY_HOME")


def test_keys_of_providers_in_the_env_file_are_seen_and_never_override(machine: Machine) -> None:
    machine.write(".env", "OPENAI_API_KEY=from-file\nOTHER=from-file\n")
    machine.variables["OPENAI_API_KEY"] = "from-environment"
    environ = machine.load().environ
    assert (environ["OPENAI_API_KEY"], environ["OTHER"]) == ("from-environment", "from-file")


def test_a_value_may_refer_to_another_one(value) -> None:
    overrides = (
        "lm.model=openai/x",
        "agents.verifier.lm.model=${agents.planner.lm.model}",
        "agents.planner.lm.model=openai/p",
    )
    assert value("agents.verifier.lm.model", *overrides)[0] == "openai/p"


def test_a_resumed_run_has_its_stored_config_but_new_secrets_and_overrides(machine: Machine) -> None:
    from roma_ray.config import storable

    first = machine.load("lm.model=openai/x", "lm.api_key=sk-first-secret", "limits.max_depth=2", "goal=why, (really)?")
    stored = storable(first.config)
    assert "sk-first-secret" not in str(stored)
    machine.variables |= {"ROMA_RAY_LIMITS__MAX_DEPTH": "1", "ROMA_RAY_LM__API_KEY": "sk-second-secret"}
    again = machine.load("limits.max_nodes=9", base=stored).config
    assert (again.goal, again.limits.max_depth, again.limits.max_nodes) == ("why, (really)?", 2, 9)
    assert again.agents.planner.lm.model == "openai/x"
    assert again.agents.planner.lm.api_key is not None
    assert again.agents.planner.lm.api_key.get_secret_value() == "sk-second-secret"
