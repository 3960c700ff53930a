import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roma_ray.runlog.codec import decode, encode
from roma_ray.types import Json

# Integers over 64 bits and lone surrogates too: a model's answer may hold them.
TEXTS = st.text(st.characters(codec=None))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8)


@settings(max_examples=100, deadline=None)
@given(payload=st.dictionaries(TEXTS, PLAIN), padding=st.sampled_from([0, 1000]))
def test_every_payload_reads_back_exactly(payload: dict[str, Json], padding: int) -> None:
    payload |= {"padding": "x" * padding}
    assert repr(decode(encode(payload))) == repr(payload)


def test_long_payloads_are_compressed_and_short_ones_stay_readable() -> None:
    assert encode({"text": "short"}) == b'\0{"text":"short"}'
    assert len(encode({"text": "long " * 1000})) < 100


def test_what_is_not_plain_data_is_refused() -> None:
    with pytest.raises(TypeError):
        encode({"text": object()})
