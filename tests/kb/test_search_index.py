"""What the search index takes from the pages."""

import json

import pytest

from kb.page import PageError
from kb.paths import DOCS
from kb.search_index import (
    FOLDER,
    OPEN_BUTTON,
    SearchPage,
    Section,
    answers_json,
    bodies_json,
    files,
    notebook_markdown,
    page_sections,
    search_pages,
    titles_json,
)
from kb.search_script import bundle, lean
from kb.search_text import code_words, formula_text, plain_text


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\Psi", "Ψ"),
        (r"2\Psi\,\text{FLOPs}", "2Ψ FLOPs"),
        (r"\frac{\sqrt{d_k}}{n}", "√d_k/n"),
        (r"sbh\left(34+5\frac{as}{h}\right)", "sbh(34+5as/h)"),
        (r"\mathbf{W}\in\mathbb{R}^{d\times k}", "W∈R^d× k"),
        (r"\underbrace{2\Psi}_{\text{参数}}", "2Ψ_参数"),
        (r"\begin{aligned} a &= b \\ c &\le d^{2} \end{aligned}", "a = b c ≤ d^2"),
        (r"-\log \sigma(\beta x)", "- log σ(β x)"),
        (r"\frac1N\sum_r g_r", "1/N∑_r g_r"),
        (r"\frac12\|g\|_2", "1/2‖g‖_2"),
        (r"\frac{a}", "a"),
        ("{{{", ""),
    ],
)
def test_formulas(latex, text):
    assert formula_text(latex) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("**粗** *斜* ~~删~~ ==亮== `x_1`", "粗 斜 删 亮 x_1"),
        ("`a | b` 与 `**kwargs`", "a | b 与 **kwargs"),
        ("2 * 3 * 4 与 a_b_c", "2 * 3 * 4 与 a_b_c"),
        ("每卡 $16\\Psi/N_d$，共\n\n$$\n\\frac{a}{b}\n$$", "每卡 16Ψ/N_d，共 a/b"),
        ("价格 \\$5 与 $x$", "价格 $5 与 x"),
        ("[论文][zero]、[站](https://a.b/c_d)、![图](f.svg)", "论文、站、图"),
        ("[zero]: https://arxiv.org/abs/1910.02054\n正文", "正文"),
        ("| 列 | 值 |\n|---|--:|\n| a | 1 |", "列 值 a 1"),
        ('!!! note "标题"\n    内容', "标题 内容"),
        ('=== "甲"\n    内容', "甲 内容"),
        ("- 一\n- [x] 二\n1. 三\n> 引", "一 二 三 引"),
        ("<span class='x'>留</span><!-- 去 --> 3 < 4 &amp; 5", "留 3 < 4 & 5"),
        ("错了。〔题库 Q33 · 错误〕", "错了。"),
        ("字{ .class } {{ tags }}", "字"),
        ("脚注[^1]\n\n[^1]: 注", "脚注 注"),
        ("", ""),
    ],
)
def test_plain_text(markdown, text):
    assert plain_text(markdown) == text


def test_code_words():
    code = "def f(q_proj):  # 缩放\n    return F.scaled_dot_product_attention(q_proj)\n"
    assert code_words(code) == "q_proj 缩放 F.scaled_dot_product_attention"
    assert code_words("torchrun --nproc-per-node 8\nNCCL_IB_HCA=mlx5") == "torchrun nproc-per-node NCCL_IB_HCA mlx5"


def test_sections():
    markdown = """序言
## 一 $\\Psi$ { #one }
文
```python
x_1 = softmax(y)
```
### 小节 { #small }
小
## 无文 { #empty }
## 追问 { #follow-ups }
??? question "为什么用 `fp32`？"
    因为。

    ```text
    loss_scale
    ```

???+ question "还有呢？"
    没有。
## 没有 id
尾
"""
    assert page_sections(markdown) == (
        Section("", "", "序言"),
        Section("one", "一 Ψ", "文", "x_1 softmax"),
        Section("small", "小节", "小"),
        Section("follow-ups", "为什么用 fp32？", "因为。", "loss_scale"),
        Section("follow-ups", "还有呢？", "没有。"),
        Section("没有-id", "没有 id", "尾"),
    )


def test_notebook():
    source = "# ---\n# jupyter: {}\n# ---\n# %% [markdown]\n# # 账本\n#\n# 文 $x$\n# %%\nimport torch\n# 注释\n"
    source += "# %% [markdown]\n# ## 下 { #next }\n"
    assert notebook_markdown(source) == "# 账本\n\n文 $x$\n\n~~~~~python\nimport torch\n# 注释\n~~~~~\n\n## 下 { #next }\n"


@pytest.fixture
def pages(site):
    (site.docs / "index.md").write_text("# 首页\n\n欢迎。\n", encoding="utf-8")
    (site.docs / "infra/memory/index.md").write_text(
        "---\nshort: 显存\n---\n# 显存 { #top }\n\n导言。\n\n{{ questions: infra/memory }}\n", encoding="utf-8"
    )
    (site.docs / "labs").mkdir()
    (site.docs / "labs/ledger.py").write_text("# %% [markdown]\n# # 显存账本\n# 看。\n# %%\ntotal_bytes = 1\n", encoding="utf-8")
    return {page.url: page for page in search_pages(site)}


def test_an_answer_page(pages):
    page = pages["dl/training/q033-zero/"]
    assert page == SearchPage(
        url="dl/training/q033-zero/",
        id="q033",
        title="解释 ZeRO 优化器的三个 stage",
        title_en="The three stages of ZeRO",
        chapter="深度学习基础 · 训练技巧",
        tags=("zero", "ZeRO", "memory", "显存"),
        answer="三个 stage 依次切分优化器状态、梯度、参数，每卡 16/N 字节。",
        sections=(
            Section("explain", "三分钟讲清", "正文。"),
            Section("follow-ups", "通信量是多少？", "见下。"),
            Section("pitfalls", "常见错误说法", '"stage 2 再省 8 倍。" 不对，见 I1-2。'),
            Section("references", "参考", "Rajbhandari 2020"),
        ),
    )


def test_answers_come_first_and_every_page_is_there(pages):
    assert list(pages) == ["dl/training/q033-zero/", "classics/", "dl/", "", "infra/", "infra/memory/", "labs/ledger/"]


def test_an_unwritten_question_is_found_in_its_chapter(pages):
    page = pages["infra/memory/"]
    assert (page.id, page.title) == ("", "显存")
    assert page.sections == (
        Section("", "", "导言。"),
        Section("i1-2", "I1-2 激活显存怎么估算？（撰写中）", "The three stages of ZeRO ZeRO"),
    )


def test_a_lab(pages):
    page = pages["labs/ledger/"]
    assert (page.title, page.chapter) == ("显存账本", "实验")
    assert page.sections == (Section("", "", "看。", "total_bytes"),)


def test_a_page_without_a_title(site):
    (site.docs / "about.md").write_text("没有标题\n", encoding="utf-8")
    with pytest.raises(PageError, match=r"^about\.md: title: begin the page with '# title'$"):
        search_pages(site)


def test_json():
    page = SearchPage("u/", "q001", "题", "Title", "章", ("a", "甲"), "答", (Section("s", "节", "文", "x_1"),))
    other = SearchPage("o/", "", "页", "", "", (), "", ())
    assert json.loads(titles_json([page, other])) == [["u/", "q001", "题", "Title", "章", "a 甲"], ["o/", "", "页", "", "", ""]]
    assert json.loads(answers_json([page, other])) == {"u/": "答"}
    assert json.loads(bodies_json([page, other])) == {"u/": [["s", "节", "文", "x_1"]], "o/": []}
    assert "题" in titles_json([page])


def test_files(site):
    written = dict(files(site))
    assert sorted(written) == [f"{FOLDER}/{name}" for name in ("answers.json", "bodies.json", "search.css", "titles.json", "ui.mjs")]
    assert json.loads(written[f"{FOLDER}/titles.json"])[0][1] == "q033"


def test_every_module_is_part_of_the_served_script():
    script = bundle(DOCS / FOLDER, "ui.mjs")
    for module in (DOCS / FOLDER).glob("*.mjs"):
        first_line = module.read_text(encoding="utf-8").splitlines()[0]
        assert script.count(first_line) == 1


def test_lean_keeps_code():
    assert lean('a {\n  /* why */\n  b: url("//c");\n}\n\n') == 'a {\nb: url("//c");\n}\n'
    assert lean('const u = "https://a"; // kept\n  // gone\n/**\n * gone\n */\nf();\n') == 'const u = "https://a"; // kept\nf();\n'


def test_the_button_is_labelled():
    assert 'type="button" aria-label="搜索"' in OPEN_BUTTON
    assert "\\" not in OPEN_BUTTON  # it is a replacement text of re.sub
