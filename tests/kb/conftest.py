"""A small catalogue and a complete page to break in tests."""

from pathlib import Path

import pytest

from kb.catalogue import Catalogue, Chapter, Question, Section
from kb.site import Site, load_site

PAGE = """---
id: q033
title_en: The three stages of ZeRO
difficulty: 2
kind: concept
tags: [zero, memory]
related: [i1-2]
verified: 2026-12-01
---
# 解释 ZeRO 优化器的三个 stage

!!! answer "30 秒回答"
    三个 stage 依次切分优化器状态、梯度、参数，每卡 $16/N$ 字节。

## 三分钟讲清 { #explain }

正文。

## 面试官会追问 { #follow-ups }

??? question "通信量是多少？"
    见下。

## 常见错误说法 { #pitfalls }

- **"stage 2 再省 8 倍。"** 不对，见 I1-2。〔题库 Q33 · 错误〕

## 参考 { #references }

- [Rajbhandari 2020][zero]

[zero]: https://arxiv.org/abs/1910.02054
"""
PATH = "dl/training/q033-zero.md"


def question(id: str, folder: str, slug: str, title: str) -> Question:
    return Question(id, folder, title, "The three stages of ZeRO", slug, "concept", 2, ("zero",), ())


@pytest.fixture
def catalogue() -> Catalogue:
    training = Section("dl/training", "训练技巧")
    topic = Chapter("infra/memory", "显存", (Section("infra/memory", "显存"),))
    classics = Chapter("classics", "经典", (Section("classics", "经典"),))
    questions = (
        question("q033", "dl/training", "zero", "解释 ZeRO 优化器的三个 stage"),
        question("q034", "dl/training", "vanishing", "梯度消失"),
        question("i1-2", "infra/memory", "activation", "激活显存怎么估算？"),
    )
    return Catalogue(
        questions={q.id: q for q in questions},
        chapters=(Chapter("dl", "深度学习基础", (training,)),),
        infra_topics=(topic,),
        classics=classics,
        tags={"zero": "ZeRO", "memory": "显存"},
    )


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A docs folder with one answer and all index pages."""
    for name in ("dl", "infra", "infra/memory", "classics"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "index.md").write_text("---\nshort: 短名\n---\n# 章\n", encoding="utf-8")
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_text(PAGE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def site(docs: Path, catalogue: Catalogue) -> Site:
    return load_site(docs, catalogue)
