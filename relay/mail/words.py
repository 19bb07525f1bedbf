"""Values as a line of the log has them in text.  Pure; no call raises."""

from collections.abc import Mapping

from relay.clock import SECOND_NS

Value = str | int | float | None | list[str | float] | Mapping[str, int]


def postfix_delay(delay_ns: int) -> str:
    """Return a delay as Postfix shows it: two significant digits below ten seconds, to a microsecond."""
    if delay_ns <= 0:
        return "0"
    seconds = delay_ns / SECOND_NS
    digits = 0
    while digits < 6 and seconds * 10**digits < 10:
        digits += 1
    shown = f"{seconds:.{digits}f}"
    return shown.rstrip("0").rstrip(".") if digits else shown


def described(error: BaseException) -> str:
    """Return what an error is, and what it says if it can."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot even be shown
        return type(error).__name__


def shown_as_text(value: Value) -> str:
    """Return a value as text has it; only an instant or an option can be None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return " ".join(f"{name}={count}" for name, count in value.items())
    return str(value)
