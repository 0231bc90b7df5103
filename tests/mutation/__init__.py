"""Mutation testing: one small change at a time, made by mutmut, and whether a test notices it."""
