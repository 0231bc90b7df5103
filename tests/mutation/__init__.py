"""Mutants of the twins and of the judge, drawn by chance: `python -m tests.mutation --help`."""
