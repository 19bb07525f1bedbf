"""The engines that the crash and fault suites judge."""

import pytest

from tests.unit.spool.engine import OnModel
from tests.unit.spool.log_engine import LOG
from tests.unit.spool.maildir_engine import MAILDIR


@pytest.fixture(params=[pytest.param(MAILDIR, id="maildir"), pytest.param(LOG, id="log")])
def engine(request: pytest.FixtureRequest) -> OnModel:
    made: OnModel = request.param
    return made
