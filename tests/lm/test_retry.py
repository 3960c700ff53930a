"""What errors mean and how long to wait."""

from __future__ import annotations

from dspy import lm15

from roma_ray.errors import ContextTooLong, EndpointFailing, EndpointTimeout, QuotaTooSmall, RateLimited, RomaError
from roma_ray.lm.retry import LONGEST_WAIT_S, as_roma_error, is_retryable, unwrap, wait_before_retry_s


def meaning(error: Exception) -> RomaError:
    found = as_roma_error(error, model="m", timeout_s=5)
    found.__cause__ = error
    return found


def test_a_quota_below_the_request_is_told_apart_from_a_rate_limit():
    text = "Request too large on tokens per min (TPM): Limit {}, Requested 12,000. Visit our page."
    assert isinstance(meaning(lm15.RateLimitError("Rate limit reached: Limit 30000, Requested 12000")), RateLimited)
    too_small = meaning(lm15.RateLimitError(text.format("10,000")))
    assert isinstance(too_small, QuotaTooSmall)
    assert "10,000" in too_small.message and "12,000" in too_small.message
    assert not is_retryable(too_small)


def test_retry_after_is_followed_and_without_it_the_wait_grows():
    assert wait_before_retry_s(meaning(lm15.RateLimitError("slow down", retry_after=7)), retries_done=0) == 7
    waits = [wait_before_retry_s(meaning(lm15.ServerError("oops", status=500)), retries_done=n) for n in (0, 3, 20)]
    assert 0.25 <= waits[0] <= 0.5 and 2 <= waits[1] <= 4 and 15 <= waits[2] <= 30


def test_a_retry_after_of_hours_is_an_error_at_once():
    error = meaning(lm15.RateLimitError("come back tomorrow", retry_after=LONGEST_WAIT_S + 1))
    assert not is_retryable(error)
    assert "301 s" in error.message


def test_a_message_is_one_line_without_the_librarys_own_advice():
    error = meaning(lm15.AuthError("bad key\n  indeed", provider="openai"))
    assert error.message == "m: bad key indeed"


def test_a_silent_endpoint_and_a_gateways_504_are_different_things():
    assert isinstance(meaning(TimeoutError()), EndpointTimeout)
    assert isinstance(meaning(lm15.TimeoutError("gateway", status=504)), EndpointFailing)


def test_our_error_is_found_below_what_a_library_wraps_around_it():
    ours = EndpointFailing("x")
    try:
        try:
            raise ours
        except RomaError as error:
            raise ValueError("wrapped") from error
    except ValueError as wrapped:
        assert unwrap(wrapped) is ours
    assert unwrap(ValueError("other")) is None


def test_a_context_overflow_is_seen_in_words_too():
    for text in (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "the request exceeds the available context size, try increasing it",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ):
        assert isinstance(meaning(lm15.InvalidRequestError(text, status=400)), ContextTooLong)
