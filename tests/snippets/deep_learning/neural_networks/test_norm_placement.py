"""The four placements against their formulas, and the shape of the gradients over seeds."""

import pytest
import torch

from snippets.deep_learning.neural_networks.norm_placement import Sublayer, gradient_norms, mean_norms


@pytest.mark.parametrize("placement", ["post", "pre", "sandwich", "deepnorm"])
def test_forward_is_the_formula(placement):
    torch.manual_seed(0)
    block, x = Sublayer(16, placement, 8), torch.randn(3, 16)
    norm = torch.nn.functional.layer_norm

    def branch(y):
        return (y @ block.up.weight.T).relu() @ block.down.weight.T

    expected = {
        "post": lambda: norm(x + branch(x), (16,)),
        "pre": lambda: x + branch(norm(x, (16,))),
        "sandwich": lambda: x + norm(branch(norm(x, (16,))), (16,)),
        "deepnorm": lambda: norm(2 * x + branch(x), (16,)),  # (2·8)^¼ = 2
    }[placement]()
    torch.testing.assert_close(block(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gradients_grow_towards_the_output_in_post_and_shrink_in_pre(seed):
    post, pre, sandwich, deep = (gradient_norms(p, seed=seed) for p in ("post", "pre", "sandwich", "deepnorm"))
    assert post[-1] > 1.5 * post[0]
    assert pre[-1] < 0.7 * pre[0]
    assert sandwich[-1] < 0.7 * sandwich[0]
    assert max(deep) < 1.3 * min(deep)


def test_last_layer_gradient_does_not_shrink_with_depth_in_post():
    """Xiong 2020: the expected gradient near the output is of order 1 in post-LN and of order 1/√L in pre-LN."""
    post = [gradient_norms("post", layers)[-1] for layers in (6, 96)]
    pre = [gradient_norms("pre", layers)[-1] for layers in (6, 96)]
    assert post[1] > 0.6 * post[0]
    assert pre[1] < 0.5 * pre[0]


def test_rejects():
    for call in (lambda: Sublayer(4, "middle", 2), lambda: Sublayer(4, "deepnorm", 0), lambda: Sublayer(1, "pre", 2)):
        with pytest.raises(ValueError, match="placement"):
            call()
    with pytest.raises(ValueError, match="seeds"):
        mean_norms("pre", 2, seeds=0)
    with pytest.raises(ValueError, match="layers"):
        gradient_norms("pre", 0)
