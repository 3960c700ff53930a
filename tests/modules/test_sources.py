from __future__ import annotations

import sys
import types

import dspy
import pytest

from roma_ray import Executor
from roma_ray.errors import ConfigError
from roma_ray.modules.sources import load_demos, load_instructions
from tests.modules.engines import chat, lm_saying, prompt_of


@pytest.fixture(autouse=True)
def prompts_module(monkeypatch):
    module = types.ModuleType("prompts_of_test")
    module.TEXT = "Answer in verse."
    module.DEMOS = [dspy.Example(goal="one plus one", output="two").with_inputs("goal")]
    module.NUMBER = 7
    monkeypatch.setitem(sys.modules, "prompts_of_test", module)


@pytest.mark.parametrize("text", ["Note: careful", "Do this.\nThen:that", "a", "See file.jinja for more: now"])
def test_inline_text_stays_as_it_is(text):
    assert load_instructions(text) == text


def test_instructions_come_from_a_template_file_and_from_a_variable(tmp_path):
    path = tmp_path / "how.jinja"
    path.write_text("{# why #}Be {{ 'brief' | upper }}.")
    assert load_instructions(str(path)) == "Be BRIEF."
    assert load_instructions("prompts_of_test:TEXT") == "Answer in verse."


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("no/such.jinja2", "no/such.jinja2"),
        ("no_such_module:TEXT", "no_such_module"),
        ("prompts_of_test:NONE", "NONE"),
        ("prompts_of_test:NUMBER", "not a text"),
    ],
)
def test_an_unknown_source_of_instructions_is_an_error_that_names_it(source, named):
    with pytest.raises(ConfigError, match=named):
        load_instructions(source)


def test_a_broken_template_is_an_error(tmp_path):
    path = tmp_path / "broken.jinja"
    path.write_text("{% if %}")
    with pytest.raises(ConfigError, match="no valid template"):
        load_instructions(str(path))


@pytest.mark.parametrize("source", ["just text", "prompts_of_test:TEXT", "prompts_of_test:NONE"])
def test_demos_must_be_a_list_of_examples_in_a_module(source):
    with pytest.raises(ConfigError):
        load_demos(source)


def test_instructions_and_demos_reach_the_model():
    lm, engine = lm_saying(chat(output="ok"))
    module = Executor("Predict", lm=lm, instructions="prompts_of_test:TEXT", demos="prompts_of_test:DEMOS")
    module.forward("two plus two", demos=[dspy.Example(goal="three", output="drei")])
    assert str(engine.requests[0].system).startswith("Answer in verse.")
    prompt = prompt_of(engine.requests[0])
    assert prompt.index("one plus one") < prompt.index("drei") < prompt.index("two plus two")
