"""What DSPy must be told about its surroundings."""

from __future__ import annotations

import logging
import os

from roma_ray.config.sources import home


def prepare() -> None:
    """No look-ups on the network for model metadata, the answer cache under `home()`, quiet library loggers.

    Called before the first model or price is asked for; more often does no harm. A variable that the user has set is
    left alone, as is the root logger.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("DSPY_CACHEDIR", str(home() / "cache" / "lm"))
    # DSPy warns with whole prompts and once per cut answer; both are reported by us, in one line.
    for name in ("dspy", "LiteLLM", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
