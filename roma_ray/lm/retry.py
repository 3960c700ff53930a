"""What the errors of a model call mean, which of them are worth another attempt, and how long to wait before it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from dspy import lm15
from dspy._vendor.lm15.transports import ConnectError

from roma_ray.errors import (
    AuthRefused,
    BillingRefused,
    ContextTooLong,
    EndpointFailing,
    EndpointTimeout,
    EndpointUnreachable,
    QuotaTooSmall,
    RateLimited,
    RequestRefused,
    RomaError,
    WorldError,
)

LONGEST_WAIT_S = 300.0
"""A Retry-After beyond this is not waited for: the call fails as RateLimited and the run can be resumed later."""

_FIRST_WAIT_S = 0.5
_LONGEST_BACKOFF_S = 30.0
# Only OpenAI gives this a code of its own; vLLM, llama.cpp, OpenRouter and others say it in words.
_CONTEXT = re.compile(r"maximum context length|context (size|window|length)|prompt is too long", re.IGNORECASE)
_QUOTA = re.compile(r"limit[:\s]+([\d,]+).{0,80}?requested[:\s]+([\d,]+)", re.IGNORECASE | re.DOTALL)


def wait_before_retry_s(error: RomaError, *, retries_done: int) -> float:
    """Seconds to wait before asking again after `error`: Retry-After where the endpoint said so, else exponential.

    The exponential wait is drawn from its upper half, so that calls that failed together do not return together.
    """
    asked_s = _retry_after_s(error)
    if asked_s is not None:
        return asked_s
    longest_s = min(_FIRST_WAIT_S * 2 ** min(retries_done, 10), _LONGEST_BACKOFF_S)
    return random.uniform(longest_s / 2, longest_s)


def is_retryable(error: BaseException) -> bool:
    """Whether the same request may well be answered a little later."""
    if not isinstance(error, WorldError) or isinstance(error, QuotaTooSmall):
        return False
    return (_retry_after_s(error) or 0.0) <= LONGEST_WAIT_S


def may_be_billed(error: BaseException) -> bool:
    """Whether the request went out and nobody knows what became of it: no answer in time, or a cut connection."""
    if isinstance(error, EndpointTimeout):
        return True
    cause = error.__cause__
    return isinstance(cause, lm15.TransportError) and not isinstance(cause.__cause__, ConnectError)


def as_roma_error(error: Exception, *, model: str, timeout_s: float) -> RomaError:
    """What `error`, raised by one attempt at asking `model`, means in our tree; the caller raises it from `error`."""
    if isinstance(error, RomaError):
        return error
    if not isinstance(error, lm15.LM15Error):
        if isinstance(error, TimeoutError):
            return EndpointTimeout(f"{model} did not answer within {timeout_s:g} s")
        return EndpointFailing(f"{model} answered with something unreadable: {type(error).__name__}: {_brief(error)}")
    text = f"{model}: {_brief(error)}"
    if isinstance(error, lm15.RateLimitError):
        return _rate_limit(error, model, text)
    if isinstance(error, lm15.InvalidRequestError) and _CONTEXT.search(error.message):
        return ContextTooLong(text)
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind):
            return meaning(text)
    # A gateway's 504 is an lm15 TimeoutError, but it is the endpoint that answers, and with an error.
    if error.status is not None and 500 <= error.status <= 599:
        return EndpointFailing(text)
    return EndpointTimeout(text) if isinstance(error, lm15.TimeoutError) else EndpointFailing(text)


# Specific classes precede their parents.
_MEANINGS: tuple[tuple[type[Exception], type[RomaError]], ...] = (
    (lm15.ContextLengthError, ContextTooLong),
    (lm15.AuthError, AuthRefused),
    (lm15.BillingError, BillingRefused),
    (lm15.InvalidRequestError, RequestRefused),
    (lm15.CapabilityError, RequestRefused),
    (lm15.ConfigurationError, RequestRefused),
    (lm15.TransportError, EndpointUnreachable),
)


def _rate_limit(error: lm15.RateLimitError, model: str, text: str) -> RomaError:
    numbers = _QUOTA.search(error.message)
    if numbers:
        limit, requested = (int(number.replace(",", "")) for number in numbers.groups())
        if requested > limit:
            return QuotaTooSmall(f"{model} allows {limit:,} tokens a minute and this request needs {requested:,}")
    if "request too large" in error.message.lower():
        return QuotaTooSmall(text)
    wait_s = error.retry_after
    return RateLimited(f"{text} (it asks to wait {wait_s:g} s)" if wait_s and wait_s > LONGEST_WAIT_S else text)


def unwrap(error: BaseException) -> RomaError | None:
    """The RomaError that `error` is or was raised from (DSPy wraps what an engine raises), None if there is none."""
    return next((link for link in _causes(error) if isinstance(link, RomaError)), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _retry_after_s(error: BaseException) -> float | None:
    return getattr(error.__cause__, "retry_after", None)


def _brief(error: BaseException) -> str:
    """The first paragraph on one line: lm15 adds advice below it that is not about our settings."""
    message = str(getattr(error, "message", "") or error).split("\n\n")[0]
    return " ".join(message.split())[:300] or type(error).__name__
