"""MkDocs events, each handed on to the function that does the work."""

import os
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import get_toc

from kb import (
    calculators,
    errata,
    exercises,
    freshness,
    highlighting,
    html_passes,
    llms,
    notebook,
    python_runtime,
    runnable,
    search_index,
    vendor,
    views,
)
from kb.catalogue import catalogue
from kb.katex import FormulaError, Renderer
from kb.page import PageError
from kb.paths import CACHE, ROOT, SNIPPETS
from kb.site import Site, load_site, navigation, redirects

HEADER_END = re.compile(r"(?=</nav>)")


class Build:
    """What one build knows: the pages, and what lives on between builds of `mkdocs serve`."""

    site: Site
    renderer: Renderer | None = None
    highlights: highlighting.Cache | None = None
    python: python_runtime.Runtime | None = None
    snippets: runnable.Snippets
    runnable: dict[str, tuple[str, ...]]


build = Build()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))  # the command mkdocs, unlike python -m mkdocs, does not find snippets
    try:
        build.site = load_site(Path(config.docs_dir), catalogue())
    except PageError as error:
        raise Abort(str(error)) from None
    build.renderer = build.renderer or Renderer()
    if build.highlights is None:
        build.highlights = highlighting.Cache()
        highlighting.install(build.highlights)
    if build.python is None and (package := python_runtime.find()):
        build.python = python_runtime.Runtime(package)
    build.snippets = runnable.Snippets()
    build.runnable = build.snippets.runnable() if build.python else {}
    calculators.refresh()
    calculators.install(config)
    config.nav = navigation(build.site)
    config.plugins["redirects"].config["redirect_maps"] = redirects(build.site)
    config.plugins["mkdocs-jupyter"].config["cache_dir"] = str(CACHE / "labs" / notebook.sources_digest(SNIPPETS))
    os.environ["PYTHONPATH"] = str(ROOT)  # the kernel of a lab imports snippets
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, source in vendor.assets():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    for path, script in calculators.scripts():
        files.append(File.generated(config, path, content=script))
    for path, made_of in freshness.sources(build.site).items():
        file = files.get_file_from_path(path)
        if freshness.is_stale(Path(file.abs_dest_path), made_of):
            file.is_modified = lambda: True
    files.append(File.generated(config, "contributing.md", abs_src_path=str(ROOT / "CONTRIBUTING.md")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = runnable.mark_blocks(markdown, build.runnable)
    answer = build.site.answer_at(page.file.src_uri)
    if answer:
        markdown = exercises.expand(markdown, answer.id, build.runnable)
        return views.decorate_answer(markdown, answer, build.site, config.repo_url or "")
    return views.expand_markers(errata.expand_marker(markdown, page.url, build.site), page.url, build.site)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri.endswith(".py"):
        lab = notebook.lean(page.file.src_uri, content)
        content, page.toc = lab.content, get_toc(lab.toc)
    content = html_passes.join_chinese_lines(content)
    content = html_passes.name_follow_ups(content)
    content = html_passes.inline_figures(content, Path(page.file.abs_src_path))
    content = errata.badges(content)
    content = calculators.fill(content, page.url, python=build.python is not None)
    return html_passes.link_questions(content, page.url, build.site)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    try:
        output = build.renderer.render_page(page.file.src_uri, output)
    except FormulaError as error:
        raise Abort(str(error)) from None
    return HEADER_END.sub(search_index.OPEN_BUTTON, output, count=1)


def on_post_build(config: MkDocsConfig) -> None:
    build.renderer.save()
    build.highlights.save()
    build.snippets.save()
    out = Path(config.site_dir)
    if build.python:
        runnable.publish(build.snippets, build.python, out)
    for path, text in (
        *search_index.files(build.site),
        *llms.files(build.site, config.site_name, config.site_description or ""),
    ):
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
