"""The same durable steps on other engines and on roma_ray, one script an engine, each run in an environment of its own.

`scripts/bench-peers` makes those environments from `requirements/`; the engines are no dependency of the package.
"""
