"""Side-by-side timings, each a ratio against a named peer in the same run: `python -m benchmarks`."""
