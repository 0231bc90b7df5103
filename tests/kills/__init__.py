"""The kill matrix: each mistake shown to each kind of check, with the CPU seconds that it took.

python -m tests.kills --help
"""
