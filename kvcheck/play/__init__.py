"""Driving a manager: operations, programs of them, and what is checked after each."""
