"""The forms in which request traces are published: one module each, and which one a file has.

Every reader makes the same records of its file, one at a time. spec/replay.md, section 1, says what
each format contains exactly, what is estimated and what is missing.
"""
