"""Additions of the site to the pages of the repository."""
