"""Tests of the examples in text."""
