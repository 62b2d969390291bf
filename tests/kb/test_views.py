from urllib.parse import parse_qs, urlsplit

import pytest

from kb import views
from kb.html_passes import inline_figures, join_chinese_lines, link_questions, name_follow_ups


@pytest.mark.parametrize(
    ("target", "page", "link"),
    [
        ("q/033/", "dl/training/q033-zero/", "../../../q/033/"),
        ("dl/training/q033-zero/", "dl/", "training/q033-zero/"),
        ("tags/", "", "tags/"),
        ("llms.txt", "about/", "../llms.txt"),
    ],
)
def test_relative_links(target, page, link):
    assert views.relative(target, page) == link


def test_header_carries_short_link_and_share_text(site):
    answer = site.answers["q033"]
    html = views.header(answer, site, "https://host.example/team/kb")
    assert 'href="../../../q/033/" data-share="Q033 解释 ZeRO 优化器的三个 stage"' in html
    assert '<time datetime="2026-12-01">' in html
    assert 'href="../../../tags/#zero">ZeRO</a>' in html


def test_report_link_prefills_page_and_id(site):
    link = views.report_link(site.answers["q033"], "https://host.example/team/kb/")
    query = parse_qs(urlsplit(link).query)
    assert urlsplit(link).path == "/team/kb/issues/new"
    assert query["question"] == ["Q033"]
    assert query["page"] == ["dl/training/q033-zero.md"]


def test_report_link_without_a_code_host_stays_on_the_site(site):
    assert 'href="../../../contributing/#report"' in views.header(site.answers["q033"], site, "")


def test_table_links_written_and_only_lists_unwritten(site):
    html = views.question_table("dl/training", "dl/", site)
    assert '<a href="training/q033-zero/">' in html
    assert '梯度消失 <span class="kb-unwritten">撰写中</span>' in html
    assert 'class="arithmatex"' in html, "formulas of the 30-second answer are left to the math renderer"


def test_table_of_an_unknown_folder_is_an_error(site):
    with pytest.raises(ValueError, match="dl/none"):
        views.expand_markers("{{ questions: dl/none }}", "dl/", site)


def test_tag_listing_groups_pages(site):
    html = views.tag_listing("tags/", site)
    assert html.index("显存") > html.index("ZeRO")
    assert html.count("../dl/training/q033-zero/") == 2


def test_counts(site):
    assert views.expand_markers("{{ written }}/{{ planned }}", "", site) == "1/3"


def test_related_lists_unwritten_without_link(site):
    html = views.related(site.answers["q033"], site)
    assert "撰写中" in html
    assert "<a " not in html


def test_ids_in_text_become_links_except_in_code_headings_and_links(site):
    content = "<h2>Q033</h2><p>见 Q033、Q034、xQ033、Q0331。<code>Q033</code><a href='x'>Q033 <b>Q033</b></a></p>"
    linked = link_questions(content, "dl/", site)
    assert linked.count('<a href="training/q033-zero/"') == 1
    assert "<h2>Q033</h2>" in linked
    assert "<code>Q033</code>" in linked


def test_nested_elements_of_the_same_name_end_where_they_end(site):
    content = '<div class="arithmatex"><div>Q033</div>Q033</div><p>Q033</p>'
    assert link_questions(content, "dl/", site).count("<a ") == 1


def test_a_page_does_not_link_to_itself(site):
    assert "<a " not in link_questions("<p>Q033</p>", "dl/training/q033-zero/", site)


def test_follow_ups_get_stable_ids():
    one = '<details class="question">\n<summary>为什么？</summary><p>x</p></details>'
    other = '<details class="question">\n<summary>怎么办？</summary><p>x</p></details>'
    first = name_follow_ups(one + other)
    assert name_follow_ups(other + one).count('id="f-') == 2
    assert first.split('id="')[1][:8] == name_follow_ups(other + one).split('id="')[2][:8]


def test_figures_are_inlined(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "x-y.svg").write_text("<svg/>\n", encoding="utf-8")
    html = inline_figures('<p><img alt="每卡字节" src="../figures/x-y.svg" /></p>', tmp_path / "q001-x.md")
    assert html == '<figure class="kb-figure"><svg/><figcaption>每卡字节</figcaption></figure>'


def test_chinese_lines_are_joined_without_a_space():
    assert join_chinese_lines("<p>一行。\nTP 二行\n二行 a\n三</p><pre>一\n二</pre>") == "<p>一行。TP 二行二行 a\n三</p><pre>一\n二</pre>"
