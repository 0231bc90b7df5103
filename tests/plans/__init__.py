"""Tests of plan files, descriptions of models, and `kvspec plan`."""
