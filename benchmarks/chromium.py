"""A headless Chromium that selenium drives, for the benchmarks that look at pages."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip


@contextlib.contextmanager
def chromium() -> Iterator[Chrome]:
    """Start a Chromium with a profile of its own; raise ``ImportError`` where there is no selenium."""
    from selenium import webdriver  # noqa: PLC0415 (only who has it can look at pages)
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415 (as above)

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        with webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))) as driver:
            yield driver
