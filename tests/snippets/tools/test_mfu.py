import pytest

from snippets.tools.mfu import mfu

PALM = dict(active_b=540.354281472, layers=118, heads=48, head_dim=256, seq=2048, tokens_per_s=238_300, gpus=6144, peak_tflops=275)


def test_palm():
    """Chowdhery et al. 2022, section 4 and appendix B: 46.2 %."""
    assert mfu(**PALM, causal="full")["mfu"] == pytest.approx(46.2, abs=0.05)


def test_megatron_formula_is_the_same_count():
    """72·B·L·s·h²·(1 + s/6h + V/12hL) for GPT-3's shape, with N the parameters in matrix products."""
    layers, h, s, vocabulary = 96, 12288, 2048, 51_200
    n = 12 * layers * h**2 + vocabulary * h
    per_token = 72 * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * h * layers))
    result = mfu(active_b=n / 1e9, layers=layers, heads=96, head_dim=128, seq=s, causal="full", tokens_per_s=100)
    assert result["token_gflop"] * 1e9 == pytest.approx(per_token)


def test_conventions():
    half, full = mfu(causal="half"), mfu(causal="full")
    assert half["mfu"] == full["mfu_other"]
    assert full["mfu"] == half["mfu_other"]
    assert half["mfu_6n"] == full["mfu_6n"] < half["mfu"] < full["mfu"]
    assert half["mfu_sparse"] * 2 == half["mfu"]
    assert half["hfu"] == half["mfu"]


def test_recomputation_counts_only_for_the_hardware():
    plain, selective, full = (mfu(recompute=mode) for mode in ("none", "selective", "full"))
    assert plain["mfu"] == selective["mfu"] == full["mfu"]
    assert plain["hfu"] < selective["hfu"] < full["hfu"]
    assert full["hfu"] == pytest.approx(full["mfu"] * 4 / 3)


def test_impossible_throughput_is_refused():
    with pytest.raises(ValueError, match=r"^tokens_per_s: .*100%"):
        mfu(tokens_per_s=1e6)
    with pytest.raises(ValueError, match=r"^gpus: "):
        mfu(gpus=0)
