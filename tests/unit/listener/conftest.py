"""Tests of the listener run on both event loops where the loop makes a difference."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from argon2 import PasswordHasher

from tests.fakes.certificates import Certificates, make_certificates
from tests.unit.listener.conversation import LeapingLoop

ON_ONE_LOOP = {"test_auth", "test_dialogues"}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": LeapingLoop}
    return loops if item.path.stem in ON_ONE_LOOP else loops | {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the users `mjd` with `open sesame` and `zoë` with `schlüssel`; their hashes are cheap."""
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    path = tmp_path_factory.mktemp("users") / "users"
    lines = [f"{name}:{hasher.hash(word)}\n" for name, word in (("mjd", "open sesame"), ("zoë", "schlüssel"))]
    path.write_text("".join(lines), "utf-8")
    path.chmod(0o600)
    return path
