"""The pictures of pages that README.md has: python benchmarks/report_pictures.py [--into docs].

It judges torch and reference-split as `gradconform run` does, makes a page of each, and photographs its head. It needs
the extra `report`, selenium, chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

from chromium import chromium
from PIL import Image

import gradconform
from gradconform.report.page.pages import report_page

TARGETS = ("torch", "reference-split")

#: In pixels of the page; a picture has as many.
WIDTH, HEIGHT = 1000, 760

#: So few are enough for text and bars, and make a picture a third as large.
COLOURS = 64


def main() -> None:
    """Judge, and photograph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path(__file__).parents[1] / "docs")
    folder = parser.parse_args().into
    with tempfile.TemporaryDirectory() as beside, chromium() as driver:
        metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for target in TARGETS:
            page = Path(beside, "page.html")
            page.write_text(report_page(gradconform.check_stage_backward(target)), encoding="utf-8")
            driver.get(page.as_uri())
            picture = folder / f"report-{target}.png"
            few = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB").quantize(COLOURS)
            few.save(picture, optimize=True)
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
