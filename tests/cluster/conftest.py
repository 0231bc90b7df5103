"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A Ray cluster on this machine with an idle head; tests add nodes."""
    utils = pytest.importorskip("ray.cluster_utils", reason="needs the extra cluster (ray)")
    found = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield found
    found.shutdown()
