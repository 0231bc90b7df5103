"""Tests of kvref alone."""
