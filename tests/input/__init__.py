"""Damaged files, messages and options: each reader reads, or refuses with one typed error."""
