"""Tests of kvfast."""
