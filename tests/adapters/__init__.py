"""Adapters: other projects' managers behind the contract's interface."""
