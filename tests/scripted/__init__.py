"""A model server that answers by rule, so that tests and benchmarks can count and predict every call."""
