"""The log engine: held to the suite that every engine is held to."""

from pathlib import Path

import pytest

from tests.engines.spool.conformance import Conformance, FailingConformance
from tests.engines.spool.log_engine import LogEngine, log_on_the_kernel, log_on_the_model


class TestLogOnTheModel(FailingConformance):
    @pytest.fixture
    def engine(self) -> LogEngine:
        return log_on_the_model()


@pytest.mark.full
class TestLogOnTheKernel(Conformance):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> LogEngine:
        return log_on_the_kernel(tmp_path)
