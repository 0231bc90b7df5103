"""Bytes, lines and JSON of untrusted files: read within bounds, written all or nothing."""
