"""What a page of 5,000 results costs: python benchmarks/report_page.py [--results N] [--failing SHARE] [--rounds R].

It prints how long a report takes to become HTML, how large that is, and how long Chromium takes to open it: to the load
event, and to the first picture with all that the page's script does. The results are those of a run of profile `full`
on reference-split, on as many devices as it takes; of a share, by default a fifth, the run says that they failed, each
with a message and findings as torch's have them.

A page that is opened needs selenium, chromium and chromedriver; without them the rest is printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from chromium import chromium

import gradconform
from gradconform.report.page.pages import report_page
from gradconform.results import Report, Result

TARGETS = {"rendered in": 3.0, "opened in": 2.0}


def report_of(results: int, failing: float) -> Report:
    """Return a report of so many results, with the checks of profile full as often as it takes."""
    run = gradconform.check_stage_backward("reference-split", profile="full")
    every = round(1 / failing) if failing else results + 1
    endless = (replace(result, device=f"cpu:{copy}") for copy in count() for result in run.results)
    found = [_failed(r) if number % every == 0 else r for number, r in enumerate(islice(endless, results))]
    return replace(run, results=found, manifest=results, planned=results)


def _failed(result: Result) -> Result:
    text = "worst at [3, 0]: expected -0.126321614, got -0.339948356; error 0.214, bound 9.54e-07, error/bound 3.12e+05"
    finding = {"kind": "mismatch", "where": "layers.0.weight", "action": "W0", "text": text, "error": 0.214}
    finding |= {
        "bound": 9.54e-07,
        "headroom": 312000.0,
        "cause": {"kind": "added", "microbatches": [0], "text": "micro-batch 0 added as well"},
        "sort": "parameter gradient",
        "raised": None,
        "needs": None,
    }
    message = f"program F0 I0 F1 I1 W0 W1\nlayers.0.weight, after W0: {text}; likely cause: micro-batch 0 added as well"
    return replace(
        result, status="failed", kind="mismatch", error_ratio=312000.0, message=message, findings=(finding,) * 3
    )


def opened(page: Path, rounds: int) -> list[float]:
    """Return the seconds that Chromium takes to open the page, to the first picture that its script has seen to."""
    found = []
    with chromium() as driver:
        for _ in range(rounds):
            driver.get("about:blank")
            start = time.perf_counter()
            driver.get(page.as_uri())
            driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done));")
            found.append(time.perf_counter() - start)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=5000)
    parser.add_argument("--failing", type=float, default=0.2, help="the share that failed (default: 0.2)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report = report_of(options.results, options.failing)
    rendered, text = [], ""
    for _ in range(options.rounds):
        start = time.perf_counter()
        text = report_page(report)
        rendered.append(time.perf_counter() - start)
    print(f"{options.results} results, {report.summary['failed']} of them failed: {len(text) / 1e6:.1f} MB of HTML")
    timings = {"rendered in": rendered}
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(text, encoding="utf-8")
        try:
            timings["opened in"] = opened(page, options.rounds)
        except ImportError as error:
            print(f"not opened: {error}")
    for name, seconds in timings.items():
        print(
            f"{name} {statistics.median(seconds):.2f} s (median of {len(seconds)}; slowest {max(seconds):.2f} s; "
            f"wanted: under {TARGETS[name]:.0f} s)"
        )


if __name__ == "__main__":
    main()
