"""Tests of kvspec.explore."""
