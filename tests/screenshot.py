"""The picture in the README: python -m tests.screenshot (after make build)."""

import base64

from kb.catalogue import catalogue
from kb.paths import ROOT
from tests.site.serving import chromium, serve

TARGET = ROOT / ".github" / "screenshot.png"
ANSWER = catalogue().questions["q033"].page.removesuffix(".md") + "/"


def main() -> None:
    shots = []
    with serve(ROOT / "site") as base, chromium() as browser:
        for path, width, dark in (("", 1100, False), (ANSWER, 1100, False), (ANSWER, 390, True)):
            context = browser.new_context(
                viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", locale="zh-CN"
            )
            page = context.new_page()
            page.goto(base + path, wait_until="networkidle")
            shots.append(base64.b64encode(page.screenshot()).decode())
            context.close()
        context = browser.new_context(viewport={"width": 1498, "height": 480})
        page = context.new_page()
        images = "".join(f'<img src="data:image/png;base64,{shot}" height="440">' for shot in shots)
        page.set_content(f'<body style="margin:20px;display:flex;gap:16px;background:#d6dde4">{images}</body>')
        page.screenshot(path=str(TARGET))
        context.close()


if __name__ == "__main__":
    main()
