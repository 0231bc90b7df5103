"""Copies and computing on several streams: which of them touch a block in the wrong order."""
