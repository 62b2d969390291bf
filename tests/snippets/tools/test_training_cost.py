import pytest

from snippets.tools.training_cost import training_cost


def test_deepseek_v3():
    """DeepSeek-V3 report, table 1: 2.788M H800 hours at 2 dollars are 5.576M dollars; section 1: 180K hours per 1T tokens."""
    whole = training_cost(active_b=37, tokens_t=14.8, known="hours", hours_k=2788, gpus=2048, price=2)
    assert whole["cost"] == 5_576_000
    pretraining = training_cost(active_b=37, tokens_t=14.8, known="hours", hours_k=2664, gpus=2048)
    assert pretraining["hours_per_trillion"] == pytest.approx(180_000)
    assert pretraining["days"] / 14.8 == pytest.approx(3.66, abs=0.01)


def test_gpt3_compute():
    assert training_cost(active_b=174.604259328, tokens_t=0.3)["flops"] == pytest.approx(3.143e23, rel=1e-3)


def test_llama3_405b():
    """6·405e9·15.6e12 = 3.8e25; 30.84M hours are 341 TFLOP/s over everything."""
    result = training_cost(active_b=405, tokens_t=15.6, known="hours", hours_k=30_840, uptime=100)
    assert result["flops"] == pytest.approx(3.79e25, rel=1e-3)
    assert result["mfu_used"] / 100 * 989 == pytest.approx(341, abs=1)


def test_the_two_directions_are_inverse():
    forward = training_cost(mfu=37)
    backward = training_cost(known="hours", hours_k=forward["gpu_hours"] / 1000)
    assert backward["mfu_used"] == pytest.approx(37)
    assert backward["tokens_per_s"] == pytest.approx(forward["tokens_per_s"])


def test_bad_input_names_its_field():
    with pytest.raises(ValueError, match=r"^hours_k: .*100%"):
        training_cost(known="hours", hours_k=0.001)
    with pytest.raises(ValueError, match=r"^known: "):
        training_cost(known="days")
