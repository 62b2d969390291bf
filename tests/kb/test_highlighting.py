import pygments
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from kb.highlighting import Cache


def test_cached_results_are_those_of_pygments(tmp_path, monkeypatch):
    code, lexer = "def f(x):\n    return x\n", PythonLexer()
    cache = Cache(tmp_path)
    expected = {name: pygments.highlight(code, lexer, HtmlFormatter(cssclass=name)) for name in ("a", "b")}
    assert {name: cache.highlight(code, lexer, HtmlFormatter(cssclass=name)) for name in expected} == expected
    cache.save()
    monkeypatch.setattr(pygments, "highlight", None)
    again = Cache(tmp_path)
    assert {name: again.highlight(code, lexer, HtmlFormatter(cssclass=name)) for name in expected} == expected


def test_unused_results_are_dropped(tmp_path):
    cache = Cache(tmp_path)
    cache.highlight("x = 1", PythonLexer(), HtmlFormatter())
    cache.save()
    Cache(tmp_path).save()
    assert Cache(tmp_path)._known == {}
