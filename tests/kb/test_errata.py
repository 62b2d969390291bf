from kb.errata import badges, errata


def test_marked_pitfalls_are_collected(site):
    (found,) = errata(site)
    assert (found.bank, found.severity, found.claim, found.example) == ("Q33", "错误", "stage 2 再省 8 倍。", None)


def test_markers_become_badges():
    html = badges("<p>〔题库 Q33 · 误导 · 反例 zero.f〕</p>")
    assert "题库 Q33 如所印：误导 · 反例 <code>zero.f</code>" in html
