"""Adapters: managers of other projects with the contract's interface.

Each adapter is a subpackage with a factory, e.g. `kvcheck.adapters.vllm:implementation`. None of
them is registered, and none imports its project before the factory is called.
"""
