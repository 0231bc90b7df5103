"""The fixture that runs the command."""

from __future__ import annotations

import pytest

from tests.plans.files import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)
