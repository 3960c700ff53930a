"""What roma_ray costs beyond the model calls themselves, against the ideal and a floor measured in the same run.

    python -m benchmarks.overhead [--only fan] [--repeats 3] [--json FILE]

The floor is asyncio and plain dspy.Predict over DSPy's native engine: the same number of calls in the same order, no
tree, no Ray, nothing written down. Every measurement is a process of its own; CPU and memory are those of that process
and all its children (Ray's included), the scripted model server excluded.
"""
