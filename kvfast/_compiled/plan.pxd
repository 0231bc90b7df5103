# C types of kvfast/_core/plan.py: none, it is read once.
