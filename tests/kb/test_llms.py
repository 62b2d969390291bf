from kb import llms


def test_embeds_become_code(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n# --8<-- [start:s]\ndef f():\n    return 2\n# --8<-- [end:s]\n", encoding="utf-8")
    body = '    ```python\n    --8<-- "a.py:s"\n    ```\n'
    assert llms.expand_embeds(body, tmp_path) == "    ```python\n    def f():\n        return 2\n    ```\n"
    assert llms.expand_embeds('--8<-- "a.py"', tmp_path) == "x = 1\ndef f():\n    return 2\n"


def test_files_cover_all_answers(site):
    files = dict(llms.files(site, "名字", "说明"))
    assert set(files) == {"llms.txt", "llms-full.txt", "dl/training/q033-zero/index.md"}
    assert "[Q033 解释 ZeRO 优化器的三个 stage](dl/training/q033-zero/index.md)" in files["llms.txt"]
    assert "id: q033" not in files["llms-full.txt"]
