# C types of kvfast/_core/many.py: none, since all that takes long is in other modules.
