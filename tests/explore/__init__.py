"""Tests of kvcheck.explore."""
