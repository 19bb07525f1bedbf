import base64

import pytest

from relay.telemetry.redaction import HIDDEN, Redaction

PASSWORD = "correct horse"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "form",
    [PASSWORD, encoded(PASSWORD), encoded(f"\0mjd\0{PASSWORD}"), encoded(f"mjd\0mjd\0{PASSWORD}")],
)
def test_a_password_is_hidden_in_every_form_that_travels(form: str) -> None:
    redaction = Redaction()
    redaction.add("mjd", PASSWORD)

    hidden = redaction.hide(f"500 unknown command: AUTH {form}!")

    assert form.rstrip("=") not in hidden
    assert HIDDEN in hidden


def test_a_second_password_does_not_reveal_the_first() -> None:
    redaction = Redaction()
    redaction.add("mjd", PASSWORD)
    redaction.add("mjd", PASSWORD + " battery")

    assert redaction.hide(f"{PASSWORD} battery, {PASSWORD}") == f"{HIDDEN}, {HIDDEN}"


def test_a_text_without_secrets_is_unchanged() -> None:
    redaction = Redaction()
    redaction.add("u", "abc")

    assert redaction.hide("abc is too short to be a secret") == "abc is too short to be a secret"
