"""Where settings come from: the environment, then files; and what an error may not show."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from fedfa.settings import SECRETS_DIR, BrokerSettings, StoreSettings, wrong_settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mounted secret: links to files, as Kubernetes makes them."""
    (tmp_path / "..data").mkdir()
    for name, value in {"FEDFA_AMQP_USERNAME": "trainer", "FEDFA_AMQP_PASSWORD": "s3cret"}.items():
        (tmp_path / "..data" / name).write_text(f"{value}\n")
        (tmp_path / name).symlink_to(Path("..data") / name)
    monkeypatch.setenv(SECRETS_DIR, str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_secret_is_read_from_its_file_without_the_last_line_end() -> None:
    settings = BrokerSettings()
    assert settings.username is not None
    assert settings.username.get_secret_value() == "trainer"
    assert settings.password is not None
    assert settings.password.get_secret_value() == "s3cret"
    assert StoreSettings().secret_key is None  # no file of that name


@pytest.mark.usefixtures("folder")
def test_the_environment_wins_over_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFA_AMQP_USERNAME", "somebody")
    settings = BrokerSettings()
    assert settings.username is not None
    assert settings.username.get_secret_value() == "somebody"


def test_a_folder_that_is_not_there_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRETS_DIR, "/nowhere")
    assert BrokerSettings().password is None


def test_a_user_without_a_password_is_refused_and_nothing_secret_is_shown(folder: Path) -> None:
    (folder / "FEDFA_AMQP_USERNAME").unlink()
    with pytest.raises(ValidationError) as refusal:
        BrokerSettings()
    (line,) = wrong_settings(BrokerSettings, refusal.value)
    assert line == "FEDFA_AMQP_USERNAME and FEDFA_AMQP_PASSWORD: set both or neither"
    assert "s3cret" not in line
