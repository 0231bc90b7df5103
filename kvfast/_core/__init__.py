"""The core in plain typed Python; setup.py compiles these very files to ``kvfast._compiled``."""
