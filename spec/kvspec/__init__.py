"""The KV-cache contract: values, interface, snapshots, invariants and records.

Import the module that holds what is needed (``kvspec.config``, ``kvspec.interface``, …). Nothing
is imported here, so that ``import kvspec`` costs nothing and needs only the standard library.
"""
