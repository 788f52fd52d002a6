"""Addresses of object storage."""

import pytest

from lockstep.store import remote
from lockstep.store.remote import check_address


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("bucket/folder", "it must be the address of a folder in object storage, such as s3://BUCKET/FOLDER"),
        ("s3://key:secret@bucket/folder", "set credentials as the storage's client expects them"),
        ("nowhere://bucket", "there is no protocol nowhere"),
        ("s3:// bucket", "it must be the address"),
    ],
)
def test_bad_addresses_are_one_line(address: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        check_address(address)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_addresses_of_azure_name_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_file_system_class", lambda address: None)
    check_address("abfs://container@account.dfs.core.windows.net/runs")
    with pytest.raises(ValueError, match="a user name or a password"):
        check_address("s3://user:password@bucket/runs")
