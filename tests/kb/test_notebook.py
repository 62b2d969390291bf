import pytest

from kb.notebook import lean, sources_digest

PAGE = """<style>x</style><script>y</script><div class="jp-Notebook">
<div class="jp-Cell jp-MarkdownCell"><div class="jp-RenderedMarkdown"><h1 id="">题<a class="anchor-link">¶</a></h1>
<p>式 $x_1$，价 <code>a$b$</code></p><p>$$\\frac{1}{2}$$</p><h2 id="x">一节 { #one }<a class="anchor-link">¶</a></h2></div></div>
<div class="jp-Cell jp-CodeCell"><div class="jp-Cell jp-CodeCell" id="cell-id=1">
<div class="highlight-ipynb"><pre><span class="k">print</span>(1)
</pre></div>
<div class="jp-OutputArea-output" data-mime-type="text/plain"><pre>
1 &lt; 2
</pre></div>
<div class="jp-OutputArea-output" data-mime-type="image/svg+xml"><svg viewBox="0 0 1 1"></svg></div>
</div></div></div>"""


def test_styles_scripts_and_wrappers_are_gone():
    lab = lean("labs/x.py", PAGE)
    assert "<style" not in lab.content
    assert "jp-" not in lab.content
    assert lab.content.count('<span class="k">print</span>(1)') == 1
    assert "1 &lt; 2</code>" in lab.content
    assert "<svg" in lab.content


def test_headings_and_math_are_those_of_other_pages():
    lab = lean("labs/x.py", PAGE)
    assert '<h2 id="one">一节</h2>' in lab.content
    assert lab.toc == [{"level": 2, "id": "one", "name": "一节", "children": []}]
    assert '<span class="arithmatex">\\(x_1\\)</span>' in lab.content
    assert '<div class="arithmatex">\\[\\frac{1}{2}\\]</div>' in lab.content
    assert "<p><div" not in lab.content
    assert "<code>a$b$</code>" in lab.content


def test_a_heading_without_id_is_an_error():
    with pytest.raises(ValueError, match=r"labs/x\.py: heading '一节'"):
        lean("labs/x.py", PAGE.replace(" { #one }", ""))


def test_the_digest_follows_the_snippets(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    before = sources_digest(tmp_path)
    (tmp_path / "a.py").write_text("x = 2")
    assert sources_digest(tmp_path) != before
