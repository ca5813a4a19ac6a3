"""Checks files in the page of verifier/js, in Chromium: browser.py CHROMIUM URL FORMS [FLAG ...]

Run by the peers' Python, which has playwright. FORMS is a list of {"files": {input: [path, …]}, "root": text, "level":
name}; what the page then says comes back, and every address that it asked for. With "drop" the receipt is dropped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright  # type: ignore[import-not-found]  # the peers' environment

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
DROP = """([name, files]) => {
  const carried = new DataTransfer();
  for (const [file, text] of files) carried.items.add(new File([text], file));
  const drop = new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true });
  document.getElementById(name).closest(".drop").dispatchEvent(drop);
}"""


def check(page: Page, url: str, case: dict[str, Any]) -> dict[str, Any]:
    """Fill in the form, press the button, read the answer."""
    page.goto(url)
    page.wait_for_selector("body[data-ready], #output:not([hidden])", state="attached")
    for name, paths in case["files"].items():
        if name == "receipt" and case.get("drop"):
            page.evaluate(DROP, [name, [[Path(path).name, Path(path).read_text("utf-8")] for path in paths]])
        else:
            page.set_input_files(f"#{name}", paths)
    page.fill("#root", case["root"])
    page.select_option("#level", case["level"])
    page.click("button")
    page.wait_for_selector("#verdict:not(:empty)")
    said = {name: page.locator(f"#{name} li").all_text_contents() for name in ("statement", "findings")}
    verdict = page.locator("#verdict")
    kind, images = verdict.get_attribute("data-verdict"), page.locator("img").count()
    return {"verdict": kind, "sentence": verdict.text_content(), "images": images, **said}


def main(chromium: str, url: str, forms: str, *flags: str) -> None:
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=[*FLAGS, *flags])
        page, asked, errors = browser.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        answers = [check(page, url, case) for case in json.loads(Path(forms).read_bytes())]
        browser.close()
    print(json.dumps({"answers": answers, "asked": sorted(set(asked)), "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
