"""The experiment behind `benchmarks/trained_vs_frozen.py`: its arms, its records and its statistics."""
