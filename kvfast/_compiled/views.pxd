# C types of kvfast/_core/views.py: none, since Python reads it.
