"""Strategies that ask more than once: vote, best of n, refine, compare, and demos picked for the input.

DSPy's own versions are synchronous, print to stdout and swallow every error. Each algorithm here stands once, as a
generator of rounds of asks; `forward` asks one after another, `aforward` asks a round at the same time.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

Inputs = dict[str, Any]
Reward = Callable[[Inputs, dspy.Prediction], float]
Answer = dspy.Prediction | AdapterParseError
"""What one ask brought: a prediction, or why the answer could not be read. Every other error ends the whole."""

_VECTOR_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of `module` with `inputs`."""

    module: dspy.Module
    inputs: Inputs


Rounds = Generator[Sequence[Ask], list[Answer], dspy.Prediction]


class Sampling(dspy.Module):
    """Drives the rounds of a strategy, synchronously or not."""

    def rounds(self, inputs: Inputs) -> Rounds:
        """Yield the asks of each round, take their answers, return the prediction."""
        raise NotImplementedError

    def forward(self, **inputs: Any) -> dspy.Prediction:
        rounds = self.rounds(inputs)
        answers: list[Answer] | None = None
        try:
            while True:
                answers = [_ask(ask) for ask in (rounds.send(answers) if answers is not None else next(rounds))]
        except StopIteration as end:
            return end.value

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        rounds = self.rounds(inputs)
        answers: list[Answer] | None = None
        while True:
            try:
                asks = rounds.send(answers) if answers is not None else next(rounds)
            except StopIteration as end:
                return end.value
            answers = await _ask_all(asks)


class Majority(Sampling):
    """Asks `n` times and takes the answer that most samples agree on, judged by the output `vote_on`."""

    def __init__(self, module: dspy.Module, *, n: int, vote_on: str, temperature: float) -> None:
        super().__init__()
        self.module, self.n, self.vote_on, self.temperature = module, n, vote_on, temperature

    def rounds(self, inputs: Inputs) -> Rounds:
        answers = yield [Ask(self.module, _sampled(inputs, i, self.temperature)) for i in range(self.n)]
        return dspy.majority(_readable(answers), normalize=_ballot, field=self.vote_on)


class BestOfN(Sampling):
    """Asks up to `n` times and takes the answer with the highest reward; one that reaches `threshold` ends it."""

    def __init__(self, module: dspy.Module, *, n: int, reward: Reward, threshold: float, temperature: float) -> None:
        super().__init__()
        self.module, self.n, self.threshold, self.temperature = module, n, threshold, temperature
        # In a lambda, so that DSPy does not take a reward that is a module for a part of this one.
        self.reward: Reward = lambda given, prediction: reward(given, prediction)

    def rounds(self, inputs: Inputs) -> Rounds:
        answers: list[Answer] = []
        best = _Best(self.reward, inputs)
        for i in range(self.n):
            answers += yield [Ask(self.module, _sampled(inputs, i, self.temperature))]
            if best.take(answers[-1]) >= self.threshold:
                break
        return best.prediction or _readable(answers)[0]


class Refine(BestOfN):
    """Best of n where each answer below `threshold` is discussed first: the next ask gets the advice with it.

    `module` takes an input `advice`; `adviser` answers it from `task`, `answer`, `reward` and `threshold`.
    """

    def __init__(self, module: dspy.Module, *, adviser: dspy.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.adviser = adviser

    def rounds(self, inputs: Inputs) -> Rounds:
        answers: list[Answer] = []
        best, advice = _Best(self.reward, inputs), None
        for i in range(self.n):
            answers += yield [Ask(self.module, _sampled({**inputs, "advice": advice}, i, self.temperature))]
            reward = best.take(answers[-1])
            if reward >= self.threshold or i == self.n - 1:
                break
            [counsel] = yield [Ask(self.adviser, self._case(inputs, answers[-1], reward))]
            advice = counsel.advice if isinstance(counsel, dspy.Prediction) else None
        return best.prediction or _readable(answers)[0]

    def _case(self, inputs: Inputs, answer: Answer, reward: float) -> Inputs:
        task = "\n\n".join(f"{name}: {value}" for name, value in inputs.items() if name not in ("config", "demos"))
        given = str(dict(answer.items())) if isinstance(answer, dspy.Prediction) else answer.lm_response
        return {"task": task, "answer": given, "reward": reward, "threshold": self.threshold}


class MultiChainComparison(Sampling):
    """Asks for `m` chains of thought, then shows them all to one last ask that decides."""

    def __init__(
        self, module: dspy.Module, *, compare: dspy.Module, m: int, answer_name: str, temperature: float
    ) -> None:
        super().__init__()
        self.module, self.compare, self.m, self.temperature = module, compare, m, temperature
        self.answer_name = answer_name

    def rounds(self, inputs: Inputs) -> Rounds:
        answers = yield [Ask(self.module, _sampled(inputs, i, self.temperature)) for i in range(self.m)]
        _readable(answers)
        attempts = {f"reasoning_attempt_{i + 1}": self._told(answer) for i, answer in enumerate(answers)}
        decided = yield [Ask(self.compare, {**inputs, **attempts})]
        return _readable(decided)[0]

    def _told(self, answer: Answer) -> str:
        if not isinstance(answer, dspy.Prediction):
            return "(no readable answer)"
        return f"Reasoning: {answer.get('reasoning', '')}\nAnswer: {answer[self.answer_name]}"


class NearestDemos(Sampling):
    """Asks once, with the `k` examples of a trainset as demos whose inputs share most words with this one's."""

    def __init__(self, module: dspy.Module, *, k: int, trainset: Sequence[dspy.Example]) -> None:
        super().__init__()
        self.module = module
        self.nearest = dspy.KNN(min(k, len(trainset)), list(trainset), vectorizer=word_vectors)  # type: ignore[arg-type]
        self.keys = trainset[0].inputs().keys()

    def rounds(self, inputs: Inputs) -> Rounds:
        known = {name: value for name, value in inputs.items() if name in self.keys}
        # The nearest last: it stands closest to the question.
        demos = [*inputs.get("demos", ()), *reversed(self.nearest(**known))]
        answers = yield [Ask(self.module, {**inputs, "demos": demos})]
        return _readable(answers)[0]


class _Best:
    """Keeps the prediction with the highest reward."""

    def __init__(self, reward: Reward, inputs: Inputs) -> None:
        self._reward_of, self._inputs = reward, inputs
        self._highest = float("-inf")
        self.prediction: dspy.Prediction | None = None

    def take(self, answer: Answer) -> float:
        """The reward of `answer`, minus infinity for one that could not be read."""
        if not isinstance(answer, dspy.Prediction):
            return float("-inf")
        reward = float(self._reward_of(self._inputs, answer))
        if self.prediction is None or reward > self._highest:
            self._highest, self.prediction = reward, answer
        return reward


def word_vectors(texts: Sequence[str]) -> Any:
    """One unit vector a text: its words, hashed (CRC-32) into 1024 places. The same in every process, no network."""
    # Imported here: only KNN pays for it.
    import numpy as np

    vectors = np.zeros((len(texts), _VECTOR_SIZE), dtype=np.float32)
    for row, text in zip(vectors, texts, strict=True):
        for word in re.findall(r"\w+", text.lower()):
            row[zlib.crc32(word.encode()) % _VECTOR_SIZE] += 1.0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-9)


def _sampled(inputs: Inputs, sample: int, temperature: float) -> Inputs:
    # The rollout id goes to no provider: it keeps DSPy's cache from giving every sample the same answer.
    return {**inputs, "config": {"temperature": temperature, "rollout_id": sample, **inputs.get("config", {})}}


def _ask(ask: Ask) -> Answer:
    try:
        return ask.module(**ask.inputs)
    except AdapterParseError as error:
        return error


async def _aask(ask: Ask) -> Answer:
    try:
        return await ask.module.acall(**ask.inputs)
    except AdapterParseError as error:
        return error


async def _ask_all(asks: Sequence[Ask]) -> list[Answer]:
    if len(asks) == 1:
        return [await _aask(asks[0])]
    tasks = [asyncio.ensure_future(_aask(ask)) for ask in asks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _readable(answers: Sequence[Answer]) -> list[dspy.Prediction]:
    """The predictions among `answers`. Raises the last parse error when there is none."""
    found = [answer for answer in answers if isinstance(answer, dspy.Prediction)]
    if not found:
        raise next(answer for answer in reversed(answers) if isinstance(answer, AdapterParseError))
    return found


def _ballot(value: Any) -> str:
    return " ".join(str(value).lower().split())
