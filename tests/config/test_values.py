"""What people write after the `=`, and what the config then holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from roma_ray.config import shown
from tests.config.conftest import Machine

SENTENCES = [
    "what, (is) 1+1=?",
    "\"quoted\" and 'single', both",
    "costs ${5} or $HOME {a: b} [x]",
    " spaces kept ",
    "null",
    "0123",
    "it's: a\nnew line",
]


@pytest.mark.parametrize("text", SENTENCES)
@pytest.mark.parametrize("key", ["goal", "answer", "resume"])
def test_a_sentence_needs_no_escape(machine: Machine, key: str, text: str) -> None:
    assert getattr(machine.load(f"{key}={text}").config, key) == text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.txt", ["a.txt"]),
        ("a.txt,b c.txt", ["a.txt", "b c.txt"]),
        ("[a.txt, b (1).txt]", ["a.txt", "b (1).txt"]),
        ("""["x,y.txt",'z.txt']""", ["x,y.txt", "z.txt"]),
        ("[]", []),
    ],
)
def test_files_are_a_list_with_or_without_brackets(machine: Machine, text: str, names: list[str]) -> None:
    assert machine.load(f"files={text}").config.files == tuple(Path(name) for name in names)


def test_text_keys_take_their_text_as_it_stands(machine: Machine) -> None:
    config = machine.load("lm.api_key=12345678", "lm.model='openai/x'", "runlog.url=sqlite:///a b.db?mode=x").config
    assert config.lm.api_key is not None and config.lm.api_key.get_secret_value() == "12345678"
    assert (config.lm.model, config.runlog.url) == ("openai/x", "sqlite:///a b.db?mode=x")


def test_lists_numbers_and_null_follow_hydras_grammar(machine: Machine) -> None:
    overrides = (
        "lm.fallbacks=[openai/a,openai/b]",
        "limits.max_cost_usd=1e-1",
        "limits.max_tokens=null",
        "+dry_run=true",
    )
    config = machine.load(*overrides, "agents.planner.strategy_config={n: 3, best: true}").config
    assert config.lm.fallbacks == ("openai/a", "openai/b")
    assert (config.limits.max_cost_usd, config.limits.max_tokens, config.dry_run) == (0.1, None, True)
    assert config.agents.planner.strategy_config == {"n": 3, "best": True}
    assert machine.load("lm.fallbacks=openai/a,openai/b").config.lm.fallbacks == config.lm.fallbacks


def test_a_yaml_file_may_say_off_and_use_digits_for_text(machine: Machine) -> None:
    machine.write("~/.config/roma_ray/config.yaml", "verify: off\nlm: {api_key: 12345678}\n")
    config = machine.load().config
    assert config.verify == "off"
    assert config.lm.api_key is not None and config.lm.api_key.get_secret_value() == "12345678"


def test_a_shown_value_never_holds_a_secret(machine: Machine) -> None:
    overrides = ("lm.api_key=very-secret-key", "runlog.url=postgresql://me:very-secret@host/db", "lm.max_tokens=9")
    loaded = machine.load(*overrides)
    everything = {name: shown(loaded.config, name) for name in loaded.sources}
    assert "very-secret" not in f"{everything} {loaded.sources}"
    assert (everything["lm.api_key"], everything["lm.max_tokens"], everything["limits.max_nodes"]) == ("***", 9, 300)


def test_the_general_profile_of_the_package_loads(machine: Machine) -> None:
    assert machine.load("profile=general").config.agents.planner.strategy == "ChainOfThought"
