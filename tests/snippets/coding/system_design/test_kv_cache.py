"""Three ways to keep K and V give the same attention, in any schedule of prefill, decoding, sharing and forking."""

import pytest
import torch
import torch.nn.functional as F

from snippets.coding.system_design.kv_blocks import BlockManager
from snippets.coding.system_design.kv_cache import ContiguousCache, PagedCache, attend, decode_tflops

HEADS, KV, D = 6, 2, 8


def model(tokens):
    """q, k, v of each position as a function of the whole prefix, as in a transformer."""
    q, k, v = [], [], []
    for i in range(len(tokens)):
        generator = torch.Generator().manual_seed(hash(tuple(tokens[: i + 1])) % 2**31)
        q.append(torch.randn(HEADS, D, generator=generator))
        k.append(torch.randn(KV, D, generator=generator))
        v.append(torch.randn(KV, D, generator=generator))
    return torch.stack(q), torch.stack(k), torch.stack(v)


def whole(tokens):
    """Causal attention over the whole sequence by torch's operator, (n, heads, d)."""
    q, k, v = (x.transpose(0, 1)[None] for x in model(tokens))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def test_preallocated_cache_in_any_pieces():
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    q, k, v = model(tokens)
    for cuts in ([8], [1] * 8, [5, 1, 2]):
        cache, out = ContiguousCache(8, KV, D), []
        for a, b, c in zip(q.split(cuts), k.split(cuts), v.split(cuts), strict=True):
            cache.write(b, c)
            out.append(attend(a, *cache.read()))
        torch.testing.assert_close(torch.cat(out), whole(tokens))
    with pytest.raises(ValueError, match="预分配"):
        cache.write(k[:1], v[:1])


def test_paged_cache_with_sharing_eviction_and_copy_on_write():
    manager = BlockManager(blocks=9, size=3)
    cache = PagedCache(manager, KV, D)
    cache.k.fill_(float("nan"))  # what was never written must never be read
    cache.v.fill_(float("nan"))

    def prefill(seq, tokens):
        hit = manager.add(seq, tokens)
        q, k, v = model(tokens)
        cache.write(seq, hit, k[hit:], v[hit:])  # only what the prefix cache did not have
        torch.testing.assert_close(attend(q[hit:], *cache.read(seq)), whole(tokens)[hit:])
        return hit

    def decode(seq, token):
        cache.copy(manager.append(seq, token))
        tokens = manager.tokens[seq]
        q, k, v = model(tokens)
        cache.write(seq, len(tokens) - 1, k[-1:], v[-1:])
        torch.testing.assert_close(attend(q[-1:], *cache.read(seq)), whole(tokens)[-1:])

    assert prefill(0, [1, 2, 3, 4, 5]) == 0
    assert prefill(1, [1, 2, 3, 9]) == 3
    manager.fork(0, 2)
    for token in (7, 8, 9):
        for seq in (0, 2, 1):
            decode(seq, token + 10 * seq)
    manager.release(0)
    manager.release(1)
    assert prefill(3, [1, 2, 3, 4, 5, 7, 8]) == 6
    manager.release(2)
    manager.release(3)
    assert prefill(4, list(range(50, 74))) == 0  # evicts
    assert len(manager.idle) + len(manager.empty) == 1


def test_attend_rejects_and_one_token():
    x = torch.zeros(2, 2, 4)
    for q, k, v in ((torch.zeros(2, 3, 4), x, x), (torch.zeros(3, 2, 4), x, x), (x, x, x[:1])):
        with pytest.raises(ValueError, match="整除"):
            attend(q, k, v)
    one = torch.randn(1, 2, 4)
    torch.testing.assert_close(attend(torch.randn(1, 4, 4), one, one), one.repeat_interleave(2, 1))


def test_flops():
    cached, again = decode_tflops(1000, 500)
    assert 400 < again / cached < 430
    assert decode_tflops(10, 1)[0] == pytest.approx(decode_tflops(10, 1)[1])
    with pytest.raises(ValueError, match="为正"):
        decode_tflops(0, 1)
