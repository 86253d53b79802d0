"""The pictures of pages that the docs have: python benchmarks/report_pictures.py [--into docs] [--only device].

It judges torch and reference-split as `gradconform run` does, and a simulated device on which one kernel is wrong above
32K values as `gradconform device` does, makes a page of each, and photographs its head; that of the device on a wide
screen and on a phone, in light and in dark. It needs the group `dev`, chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from chromium import chromium
from PIL import Image

import gradconform
from gradconform.report.page.pages import report_page

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

TARGETS = ("torch", "reference-split")
#: What stands for a device.
DEVICE = "device"

#: In pixels of the page; a picture has as many.
WIDTH, HEIGHT = 1280, 800
#: Of the page of a device.
SIZES = ((360, 760), (1280, 800))
SCHEMES = ("light", "dark")

WRONG = {"SIMX_WRONG": "aten::mul:index", "SIMX_WRONG_ABOVE": "32768"}
ARGUMENTS = (
    "device", "simx:0", "--dtype", "float32", "--operation", "mul,sin,softmax,linalg.*", "--block",
    "rms-norm,swiglu,decoder-layer",
)  # fmt: skip

#: So few are enough for text and bars, and make a picture a third as large.
COLOURS = 64


def main() -> None:
    """Judge, and photograph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(__file__).parents[1] / "docs")
    parser.add_argument("--only", choices=(*TARGETS, DEVICE))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        page = Path(folder, "page.html")
        for target in TARGETS if options.only is None else {options.only} - {DEVICE}:
            page.write_text(report_page(gradconform.check_stage_backward(target)), encoding="utf-8")
            photograph(driver, page, options.into / f"report-{target}.png", (WIDTH, HEIGHT), "light")
        if options.only in {None, DEVICE}:
            command = [sys.executable, "-m", "gradconform", *ARGUMENTS, "--html", str(page)]
            subprocess.run(command, env={**os.environ, **WRONG}, check=False, stdout=subprocess.DEVNULL)
            for size in SIZES:
                for scheme in SCHEMES:
                    photograph(driver, page, options.into / f"report-device-{size[0]}-{scheme}.png", size, scheme)


def photograph(driver: Chrome, page: Path, picture: Path, size: tuple[int, int], scheme: str) -> None:
    """Write the head of a page, as large as ``size`` says."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get(page.as_uri())
    few = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB").quantize(COLOURS)
    few.save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
