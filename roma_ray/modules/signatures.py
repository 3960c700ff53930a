"""What each module is asked and what it answers; a signature's docstring is its prompt."""

from __future__ import annotations

from typing import Optional

import dspy

from roma_ray.types import NodeType, SubTask

# `Optional[...]` and not `X | None`: DSPy resolves these annotations itself and names them in prompts.
# ruff: noqa: UP045


class AtomizerSignature(dspy.Signature):
    """Decide whether the goal is done at once or split into parts first.

    EXECUTE: one capable worker can answer it in a single step. So it is for one fact, one calculation, one short text,
    one translation, and any question about a text that is given. When in doubt, choose EXECUTE.
    PLAN: only when the goal asks for several separate pieces of work, such as researching several things, comparing
    them and writing a report.
    is_atomic is true exactly when node_type is EXECUTE.
    """

    goal: str = dspy.InputField(desc="what has to be done")
    context: Optional[str] = dspy.InputField(desc="what is known about it", default=None)
    is_atomic: bool = dspy.OutputField(desc="whether one worker can do it in a single step")
    node_type: NodeType = dspy.OutputField(desc="EXECUTE when it is atomic, else PLAN")


class PlannerSignature(dspy.Signature):
    """Split the goal into the fewest subtasks that together achieve it.

    Each subtask's goal is one sentence that makes sense by itself: it names its subject in full and never says "it" or
    "the above". No two subtasks do the same work, and none repeats the whole goal. Putting the results together is done
    afterwards by others, so leave it out.
    task_type: RETRIEVE finds facts, THINK reasons or compares, WRITE writes text, CODE_INTERPRET computes with code,
    IMAGE_GENERATION makes a picture.
    Subtasks are numbered from 0 in the order in which you list them. dependencies names the numbers of the earlier
    subtasks whose results this one needs; it is empty when it needs none. Independent subtasks run at the same time.
    """

    goal: str = dspy.InputField(desc="what has to be split")
    context: Optional[str] = dspy.InputField(desc="what is known about it", default=None)
    subtasks: list[SubTask] = dspy.OutputField(desc="the parts, in order")
    dependencies_graph: Optional[dict[str, list[str]]] = dspy.OutputField(
        desc="number of a subtask to the numbers it needs, where the subtasks do not say so", default=None
    )


class ExecutorSignature(dspy.Signature):
    """Do what the goal asks and give the finished result itself, not a plan and not advice on how to do it.

    Use the context where there is one: it holds the results that this goal builds on. Answer a question about a given
    text from that text. Say so openly if something cannot be known. sources lists the documents or addresses that the
    result was really taken from, and nothing else.
    """

    goal: str = dspy.InputField(desc="what has to be done")
    context: Optional[str] = dspy.InputField(desc="results and facts to build on", default=None)
    output: str = dspy.OutputField(desc="the finished result")
    sources: Optional[list[str]] = dspy.OutputField(desc="where it comes from", default=None)


class AggregatorSignature(dspy.Signature):
    """Put the results of the subtasks together into one complete answer to the original goal.

    Use only what the results say. Keep every fact, number and name that the goal asks for, say each thing once, and do
    not mention subtasks. Where a result is missing or results disagree, say so in a sentence.
    """

    original_goal: str = dspy.InputField(desc="what was asked for")
    subtasks_results: list[SubTask] = dspy.InputField(desc="the parts with their results")
    context: Optional[str] = dspy.InputField(desc="what else is known", default=None)
    synthesized_result: str = dspy.OutputField(desc="the answer to the original goal")


class VerifierSignature(dspy.Signature):
    """Check whether the candidate achieves the goal.

    verdict is true when the candidate answers everything that was asked, contradicts neither itself nor the context,
    and leaves out nothing essential. It is false otherwise; then feedback says in one or two sentences exactly what is
    wrong or missing. Style alone is no reason for false.
    """

    goal: str = dspy.InputField(desc="what was asked for")
    candidate_output: str = dspy.InputField(desc="the answer to check")
    context: Optional[str] = dspy.InputField(desc="what is known", default=None)
    verdict: bool = dspy.OutputField(desc="whether the goal is achieved")
    feedback: Optional[str] = dspy.OutputField(desc="what is wrong or missing, if anything", default=None)
