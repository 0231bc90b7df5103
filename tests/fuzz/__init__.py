"""A fuzzer of every public entry of kvfast's core; `python -m tests.fuzz.core --help`."""
