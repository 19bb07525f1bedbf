"""What a policy is read in: its folder, and a look at the files that it names.  Pure.

The model knows neither the folder nor the disk: `Surroundings` is the context of the validation,
and `relay.policy.secrets` has the real `SurroundingsInspector`.  Without one, no file is looked at
and paths must be absolute.  So a bad file is an error of its key, found together with all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from relay.policy.units import CredentialName, VariableName, unfit

Named = TypeVar("Named", str, Path)
RULE = "rule"
"""The type of the errors that `broken_rules` makes."""


class SurroundingsInspector(Protocol):
    """Every method raises Unfit for a bad file; its texts never hold a secret that is where it belongs."""

    def password_file(self, path: Path) -> None: ...

    def password_env(self, name: str) -> None: ...

    def password_credential(self, name: str) -> None: ...

    def users_file(self, path: Path) -> None: ...

    def authorities(self, path: Path) -> None: ...

    def signing_key(self, path: Path) -> None: ...

    def program(self, path: Path) -> None: ...

    def refresh_token_file(self, path: Path) -> None:
        """Find a file fit that is not there yet: `relay login` makes it."""

    def service_account_file(self, path: Path) -> None: ...

    def service_account_credential(self, name: str) -> None: ...

    def key_pair(self, certificate: Path, key: Path | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    folder: Path
    """Absolute; relative paths start here."""
    inspector: SurroundingsInspector | None = None


class UnusableSetting(NamedTuple):
    message: str
    """With no value of the policy in it, as that of `Unfit`."""
    at: tuple[str | int, ...]
    """From what is validated to the key at fault, like a path: `".."` goes up, so that
    `("..", "tls")` in the validator of `auth` is about `tls` beside it."""
    shown: str | None = None
    """The same with values in it, for a terminal."""


def broken_rules(rules: Sequence[UnusableSetting]) -> PydanticCustomError:
    words = "; ".join(rule.message for rule in rules)
    return PydanticCustomError(RULE, "{words}", {"words": words, "rules": tuple(rules)})


def broken(message: str, *at: str | int, shown: str | None = None) -> PydanticCustomError:
    """Return the error of one rule, to be raised in a validator; `at` and `shown` as in `UnusableSetting`."""
    return broken_rules([UnusableSetting(message, at, shown)])


def inspector_of(info: ValidationInfo) -> SurroundingsInspector | None:
    return info.context.inspector if isinstance(info.context, Surroundings) else None


def absolute_path(value: object, info: ValidationInfo) -> Path:
    """Return a path, starting at the policy's folder if it is relative.  Raises ValueError."""
    if isinstance(value, Path):
        return value
    if value == "":
        raise ValueError("expected a path, got none")
    if not isinstance(value, str):
        raise unfit("expected a path", value)
    if value.startswith("~"):
        # A folder named `~` beside the policy is never what was meant.
        raise ValueError("~ is not expanded; write the whole path")
    path = Path(value)
    if isinstance(info.context, Surroundings):
        return info.context.folder / path
    if not path.is_absolute():
        raise ValueError("expected an absolute path")
    return path


def _seen_by(look: Callable[[SurroundingsInspector, Named], None]) -> AfterValidator:
    def check(value: Named, info: ValidationInfo) -> Named:
        if inspector := inspector_of(info):
            look(inspector, value)
        return value

    return AfterValidator(check)


PolicyPath = Annotated[Path, BeforeValidator(absolute_path)]
PasswordFile = Annotated[PolicyPath, _seen_by(lambda inspector, path: inspector.password_file(path))]
PasswordVariable = Annotated[VariableName, _seen_by(lambda inspector, name: inspector.password_env(name))]
PasswordCredential = Annotated[
    CredentialName, _seen_by(lambda inspector, name: inspector.password_credential(name))
]
UsersFile = Annotated[PolicyPath, _seen_by(lambda inspector, path: inspector.users_file(path))]
CertificateFile = Annotated[PolicyPath, _seen_by(lambda inspector, path: inspector.authorities(path))]
