"""From the text of `policy.yaml` to a `Policy`, or to everything that is wrong with it.

Guarantees: any bytes become a `Policy` or a `PolicyError`, and nothing else is raised.  `parse_policy` is
pure; `read_policy` reads the file, and like `inspected_policy` looks at every file and secret that a good
text names, so that a policy which it returns can be put to work.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from relay.policy.document import MAX_BYTES, Document, Fault, Mark, Step
from relay.policy.faults import PolicyError, faults_of
from relay.policy.model import Policy
from relay.policy.named_file import read_regular
from relay.policy.secrets import unusable
from relay.policy.shipped import with_presets


def read_policy(path: Path, *, looks_at_files: bool = True) -> Policy:
    """Read it for somebody who asks, not for the service.  Raises PolicyError, also for no file.

    Looks at the files that it names, unless told not to.
    """
    content = policy_bytes(path)
    if looks_at_files:
        return inspected_policy(content, path, is_service=False)
    return parse_policy(content, path)


def place_of(path: Path, steps: Sequence[Step]) -> Mark:
    """Return where a value of a policy stands in its file.  Raises PolicyError where it cannot be read."""
    return Document(policy_bytes(path)).mark_of(steps)


def policy_bytes(path: Path) -> bytes:
    """Return the text of a policy's file.  Raises PolicyError where it cannot be read."""
    try:
        # One byte more than allowed is enough to tell that it is too large.
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> PolicyError:
    return PolicyError(path, [Fault(f"cannot read it: {error.strerror}")])


def inspected_policy(content: bytes, path: Path, *, is_service: bool = True) -> Policy:
    """Look at the files that it names, too.  Raises PolicyError with all faults."""
    policy, document = _validated(content, path)
    faults = [
        each._replace(mark=document.mark_of(each.at)) for each in unusable(policy, is_service=is_service)
    ]
    if faults:
        raise PolicyError(path, faults)
    return policy


def parse_policy(content: bytes, path: Path) -> Policy:
    """Read no file; relative paths start beside `path`.  Raises PolicyError with all faults."""
    return _validated(content, path)[0]


def _validated(content: bytes, path: Path) -> tuple[Policy, Document]:
    document = Document(content)
    faults = list(document.faults)
    if faults and document.value is None:
        raise PolicyError(path, faults)
    try:
        policy = Policy.model_validate(
            with_presets(document.value),
            # Not resolved: a policy behind a symbolic link stands where the link is.
            context=path.absolute().parent,
            by_alias=True,
            by_name=False,
        )
    except ValidationError as error:
        faults += faults_of(document, error)
    else:
        if not faults:
            return policy, document
    raise PolicyError(path, faults)
