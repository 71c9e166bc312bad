"""The page of flags is as the tables say."""

from benchmarks.flag_page import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m benchmarks.flag_page"
