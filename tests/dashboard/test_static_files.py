"""The built files of the page."""

from __future__ import annotations

from toolfold.serving.dashboard.static_files import INDEX, load_static_files

MAX_COMPRESSED_BYTES = 400_000


def test_compressed_dashboard_files_are_below_the_size_limit_and_load_nothing_from_other_servers() -> None:
    files = load_static_files()
    assert INDEX in files
    assert sum(len(each.compressed or each.content) for each in files.values()) < MAX_COMPRESSED_BYTES
    page = files[INDEX].content.decode()
    assert "http://" not in page
    assert "https://" not in page
