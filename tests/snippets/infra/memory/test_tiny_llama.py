"""The shared little model: causal, relative positions, GQA as repeated heads, and a reference run that learns."""

import pytest
import torch

from snippets.infra.memory.tiny_llama import (
    IGNORE,
    Block,
    Size,
    build,
    clip,
    count_tokens,
    distance,
    loss_sum,
    make_batch,
    rope,
    train_single,
)


def test_no_position_sees_the_future():
    model = build(dtype=torch.float64)
    x, _ = make_batch(0)
    changed = x.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 64
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_rope_scores_depend_on_the_distance_only():
    q, k = (torch.randn(8, dtype=torch.float64) for _ in "qk")
    rotated_q, rotated_k = (rope(v.expand(1, 1, 12, 8)) for v in (q, k))
    scores = (rotated_q @ rotated_k.transpose(-1, -2))[0, 0]
    for offset in range(-5, 6):
        diagonal = scores.diagonal(offset)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal))


def test_grouped_heads_equal_repeated_heads():
    torch.manual_seed(0)
    block = Block(Size()).double()
    full = Block(Size(kv=4)).double()
    full.load_state_dict(
        {
            name: value.unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1) if name in ("wk.weight", "wv.weight") else value
            for name, value in block.state_dict().items()
        }
    )
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    assert torch.allclose(block(x), full(x), atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_reference_run_learns_and_is_reproducible(tied):
    losses, weights = train_single(Size(tied=tied), steps=30)
    again, same = train_single(Size(tied=tied), steps=30)
    assert losses == again
    assert distance(weights, same) == 0
    assert losses[-1] < losses[0] - 1
    assert ("head.weight" in weights) != tied


def test_both_precisions_start_from_the_same_weights():
    single, double = (dict(build(dtype=dtype).named_parameters()) for dtype in (torch.float32, torch.float64))
    assert all(torch.equal(single[name].double(), double[name]) for name in single)


def test_ignored_targets_count_nowhere():
    model = build(dtype=torch.float64)
    x, y = make_batch(3, uneven=True)
    assert count_tokens(y) == (y != IGNORE).sum() < y.numel()
    by_hand = -torch.log_softmax(model(x), -1)
    expected = sum(by_hand[i, j, y[i, j]] for i in range(8) for j in range(16) if y[i, j] != IGNORE)
    assert loss_sum(model(x), y).item() == pytest.approx(expected.item())


def test_every_reference_step_is_clipped():
    """Otherwise the engines' clipping would not be tested at all."""
    model = build()
    for uneven in (False, True):
        x, y = make_batch(0, uneven=uneven)
        model.zero_grad()
        (loss_sum(model(x), y) / count_tokens(y)).backward()
        parameters = list(model.parameters())
        total = sum(p.grad.square().sum() for p in parameters)
        assert total.sqrt() > 0.5
        clip(parameters, total)
        assert sum(p.grad.square().sum() for p in parameters).sqrt().item() == pytest.approx(0.5, rel=1e-4)


def test_distance_refuses_different_models():
    with pytest.raises(ValueError, match="名字或形状"):
        distance({"w": torch.zeros(2)}, {"v": torch.zeros(2)})
