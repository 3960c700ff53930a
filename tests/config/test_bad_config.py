"""A mistake in the config costs the user one line that names it and its cure."""

from __future__ import annotations

import pytest

from roma_ray.errors import ConfigError, RomaError
from tests.config.conftest import Machine

MISTAKES = {
    "limits.max_depht=2": ("R0101", "limits.max_depht", "did you mean limits.max_depth?"),
    "max_depth=2": ("R0101", "max_depth", "did you mean limits.max_depth?"),
    "agents.planer.lm.model=x": ("R0101", "agents.planer.lm.model", "did you mean agents.planner.lm.model?"),
    "hydra.run.dir=x": ("R0101", "hydra.run.dir", "roma-ray config"),
    "limits.max_depth=deep": ("R0101", "limits.max_depth=deep", "a whole number of at least 0"),
    "limits.max_nodes=0": ("R0101", "limits.max_nodes=0", "the default is limits.max_nodes=300"),
    "limits.max_depth=1,2": ("R0101", "limits.max_depth=1,2", "sweep"),
    "limits.max_depth=(1": ("R0101", "limits.max_depth=(1", "quotes"),
    "limits=3": ("R0101", "limits is a section", "limits.max_depth"),
    "dry_run=maybe": ("R0101", "dry_run=maybe", "true or false"),
    "output=xml": ("R0101", "output=xml", "text, json, markdown"),
    "cluster=cloud": ("R0101", "cluster=cloud", "auto, inline, local"),
    "profile=none-such": ("R0101", "profile=none-such", "general"),
    "agents.planner.strategy=guess": ("R0101", "guess", "ChainOfThought"),
    "lm.price.prompt=1": ("R0101", "lm.price.completion is missing", "lm.price.completion="),
    "lm.model=openai/": ("R0101", "lm.model=openai/", "provider/model"),
    "lm.fallbacks=[openai/]": ("R0101", "lm.fallbacks", "provider/model"),
    "lm.api_base=localhost:8000": ("R0101", "lm.api_base=localhost:8000", "http://HOST:PORT/v1"),
    "lm.api_base=http://host:99999/v1": ("R0101", "lm.api_base=http://host:99999/v1", "Port"),
    f"limits.max_nodes={'9' * 5000}": ("R0101", "limits.max_nodes=999", "a whole number"),
    "agents.executor.strategy_config.n=x": ("R0101", "strategy_config.n=x", "a whole number above 0"),
    "agents.executor.strategy_config={temperature: hot}": ("R0101", "temperature='hot'", "number"),
    "agents.executor.strategy_config={tools: 3}": ("R0101", "tools", "no option of a strategy"),
    "goal=a\udcff": ("R0101", "goal", "UTF-8"),
    "lm.model=${no.such}": ("R0101", "no.such", "${…}"),
    "what is a fjord": ("R0100", "what is a fjord", 'goal="…"'),
    "dry_run": ("R0100", "dry_run", "dry_run=…"),
    "--verbose": ("R0100", "--verbose", "key=value"),
    "~limits.max_depth": ("R0100", "~limits.max_depth", "limits.max_depth=…"),
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_on_the_command_line_is_one_line_with_its_name_and_cure(machine: Machine, override: str) -> None:
    code, name, cure = MISTAKES[override]
    with pytest.raises(RomaError) as caught:
        machine.load(override)
    line = caught.value.line
    assert line.startswith(code) and name in line and cure in line and "\n" not in line
    assert caught.value.exit_code == 2


def test_a_misspelt_variable_is_named_with_the_key_that_was_meant(machine: Machine) -> None:
    machine.variables["ROMA_RAY_LIMITS__MAX_NODE"] = "3"
    with pytest.raises(RomaError, match=r"limits\.max_node .*ROMA_RAY_LIMITS__MAX_NODE") as caught:
        machine.load()
    assert caught.value.cure == "did you mean limits.max_nodes?"


def test_variables_that_are_no_config_keys_are_left_alone(machine: Machine) -> None:
    machine.variables |= {"ROMA_RAY_HOME": "/x", "ROMA_RAY_FAULTS": "", "ROMA_RAY_LOCAL_MODEL": "/m.gguf"}
    machine.load()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limits: {max_depht: 2}", "did you mean limits.max_depth?"),
        ("limits: [1", "is not YAML"),
        ("just words", "does not hold keys and values"),
        ("limits: {max_depth: deep}", "limits.max_depth=deep"),
    ],
)
def test_a_fault_in_the_users_file_names_the_file(machine: Machine, text: str, said: str) -> None:
    machine.write("~/.config/roma_ray/config.yaml", text)
    with pytest.raises(RomaError) as caught:
        machine.load()
    assert said in caught.value.line and "config.yaml" in caught.value.line and "\n" not in caught.value.line


def test_an_env_file_that_is_no_text_is_named(machine: Machine) -> None:
    (machine.cwd / ".env").write_bytes(bytes(range(256)))
    with pytest.raises(RomaError, match=r"\.env is not UTF-8 text"):
        machine.load()


def test_a_profile_that_does_not_say_where_it_belongs_is_told_how(machine: Machine) -> None:
    machine.write("~/.config/roma_ray/profile/mine.yaml", "limits: {max_depth: 1}\n")
    with pytest.raises(RomaError, match="profile mine") as caught:
        machine.load("profile=mine")
    assert "# @package _global_" in caught.value.cure


@pytest.mark.parametrize(
    "override", ["lm.api_key=[sk-very-secret-text]", "lm.api_key='very-secret", "lm.max_tokens='sk-very-secret-text'"]
)
def test_no_error_shows_a_secret(machine: Machine, override: str) -> None:
    with pytest.raises(RomaError) as caught:
        machine.load(override, "lm.price.prompt=x")
    assert "very-secret" not in caught.value.line


@pytest.mark.parametrize("address", ["user:hunter22@gw", "hunter22@gw:80", ":hunter22@gw", "user:hun/ter22#@gw"])
@pytest.mark.parametrize("override", ["lm.api_base={}", "lm.model=openai/x@{}", 'lm.fallbacks=["openai/x@{}"]'])
def test_a_password_in_an_address_is_refused_unseen_with_the_place_for_it(
    machine: Machine, override: str, address: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        machine.load(override.format(f"https://{address}/v1"))
    assert "lm.api_key" in caught.value.line and "hun" not in caught.value.line and "ter22" not in caught.value.line


def test_an_at_sign_in_the_path_of_an_address_is_no_password(machine: Machine) -> None:
    for override in ("lm.api_base=http://gw:80/@team/v1", "lm.model=openai/x@http://gw/@team/v1"):
        machine.load(override)


def test_a_model_with_a_faulty_name_does_not_show_the_password_beside_it(machine: Machine) -> None:
    with pytest.raises(ConfigError) as caught:
        machine.load("lm.model=openai/x@https://user:hunter22@gw/")
    assert "hunter22" not in caught.value.line
