"""The names of the providers, from the one list of them: `providers.yaml`, read once.

Does not: check the file; `shipped` does, before a policy is.
"""

import functools
from pathlib import Path

from relay.policy.document import Document, read_document

PROVIDERS_FILE = Path(__file__).parent / "providers.yaml"


@functools.cache
def providers_document() -> Document:
    return read_document(PROVIDERS_FILE.read_bytes())


def provider_names() -> tuple[str, ...]:
    match providers_document().value():
        case {"providers": dict() as providers}:
            return tuple(providers)
        case _:
            return ()
