"""The block manager against a model that never shares, its invariants under random use, and the bugs that people make."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.coding.system_design import kv_blocks as module
from snippets.coding.system_design.kv_blocks import BlockManager, OutOfBlocks, bytes_per_token, key_of_tokens_alone, memory
from tests.snippets.coding.bugs import with_bug


def invariants(manager):
    """Each block is in one of three states, counts are right, and what may be reused holds what it says."""
    blocks = range(len(manager.refs))
    used = [block for table in manager.tables.values() for block in table]
    assert [manager.refs[block] for block in blocks] == [used.count(block) for block in blocks]
    assert sorted([*set(used), *manager.idle, *manager.empty]) == list(blocks)
    assert {key: block for block, key in manager.key_of.items()} == manager.block_of
    assert all(block in manager.key_of for block in manager.idle)
    for seq, table in manager.tables.items():
        assert len(table) == -(-len(manager.tokens[seq]) // manager.size)


def contents(manager, written):
    """Every sequence reads back its own tokens from the blocks of its table."""
    for seq, tokens in manager.tokens.items():
        read = [(written[block][offset]) for block in manager.tables[seq] for offset in range(manager.size)][: len(tokens)]
        assert read == [tuple(tokens[: i + 1]) for i in range(len(tokens))], "a block holds the KV of another prefix"


def use(m, seed, *, blocks=7, size=2, steps=120):
    """Random adds, appends, forks and releases; `written` stands for the pool's tensors: KV depends on the whole prefix."""
    rng = random.Random(seed)
    manager, written = m.BlockManager(blocks, size), {block: [None] * size for block in range(blocks)}
    outs = 0
    for seq in range(steps):
        action = rng.choice(["add", "add", "append", "append", "append", "fork", "release"])
        known = sorted(manager.tables)
        try:
            if action == "add":
                tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 5))]
                hit = manager.add(seq, tokens)
                assert hit % size == 0
                assert hit < len(tokens)
                for i in range(hit, len(tokens)):
                    written[manager.tables[seq][i // size]][i % size] = tuple(tokens[: i + 1])
            elif action == "append" and known:
                chosen = rng.choice(known)
                copied = manager.append(chosen, rng.randint(0, 1))
                if copied:
                    written[copied[1]] = list(written[copied[0]])
                tokens = manager.tokens[chosen]
                written[manager.tables[chosen][-1]][(len(tokens) - 1) % size] = tuple(tokens)
            elif action == "fork" and known:
                manager.fork(rng.choice(known), seq)
            elif action == "release" and known:
                manager.release(rng.choice(known))
        except m.OutOfBlocks:
            outs += 1
        invariants(manager)
        contents(manager, written)
    for seq in list(manager.tables):
        manager.release(seq)
    invariants(manager)
    assert len(manager.empty) + len(manager.idle) == blocks, "a block leaked"
    return outs


def check(m):
    """What a module like kv_blocks.py must satisfy."""
    assert sum(use(m, seed) for seed in range(25)) > 0
    manager = m.BlockManager(4, 2)
    assert manager.add(0, [1, 2, 3, 4]) == 0
    manager.release(0)
    assert manager.add(1, [1, 2, 3, 4, 5]) == 4
    manager.release(1)
    assert manager.add(2, [1, 2, 3, 4]) == 2  # the last token is computed again
    manager = m.BlockManager(4, 2)
    manager.add(0, [1, 2, 3, 4])
    manager.release(0)
    manager.add(1, [9] * 6)  # needs three of four: the tail of the old prefix goes first, its head stays
    assert manager.block_of.keys() >= set(manager._keys([1, 2]))


def test_module_satisfies_the_check():
    check(module)


BUGS = {
    "no copy on write": ("elif self.refs[table[-1]] > 1:", "elif False:"),
    "old block of the copy kept": ("            self._drop(table[-1])\n", ""),
    "evicted block still found": ("            del self.block_of[self.key_of.pop(block)]\n", ""),
    "hit block not taken from idle": ("            self.idle.pop(block, None)\n", ""),
    "key without the prefix": ("hashlib.sha256(key + repr(", "hashlib.sha256(repr("),
    "last token from the cache": ("keys[: (len(tokens) - 1) // self.size]", "keys"),
    "newest evicted first": ("popitem(last=False)", "popitem(last=True)"),
    "hits counted as room": ("sum(block not in hits for block in self.idle)", "len(self.idle)"),
    "head of the prefix dropped first": ("for block in reversed(self.tables.pop(seq)):", "for block in self.tables.pop(seq):"),
}


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
def test_every_bug_is_caught(change):
    with pytest.raises((AssertionError, KeyError)):
        check(with_bug(module, change))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4))
def test_random_use_keeps_the_invariants(seed, blocks, size):
    use(module, seed, blocks=blocks, size=size, steps=60)


def test_failure_changes_nothing():
    manager = BlockManager(2, 2)
    manager.add(0, [1, 2, 3])
    before = (dict(manager.tables), list(manager.refs), list(manager.empty))
    with pytest.raises(OutOfBlocks):
        manager.add(1, [1, 2, 5])
    with pytest.raises(OutOfBlocks):
        manager.fork(0, 2) or manager.append(2, 4)
    manager.release(2)
    assert (dict(manager.tables), list(manager.refs), list(manager.empty)) == before
    manager.append(0, 4)  # fills its own block: no new one needed
    with pytest.raises(OutOfBlocks):
        manager.append(0, 5)
    assert manager.tokens[0] == [1, 2, 3, 4]


def test_shared_prefix_is_stored_once():
    manager = BlockManager(100, 16)
    prompt = list(range(160))
    for seq in range(20):
        manager.add(seq, [*prompt, seq])
    assert len({block for table in manager.tables.values() for block in table}) == 10 + 20


def test_keys_depend_on_the_prefix():
    assert key_of_tokens_alone([1, 2, 7, 8], 2)[1] == key_of_tokens_alone([3, 4, 7, 8], 2)[1]
    manager = BlockManager(8, 2)
    manager.add(0, [1, 2, 7, 8, 9])
    assert manager.add(1, [3, 4, 7, 8, 9]) == 0


def test_accounts():
    assert bytes_per_token() == 131_072
    assert memory([1], longest=16, size=16)[1:3] == ["0.00 GB 按 16 预留，空着 94%", "0.00 GB 整块 16，空着 94%"]


def test_rejects():
    manager = BlockManager(2, 2)
    manager.add(0, [1])
    for call in (
        lambda: BlockManager(0, 1),
        lambda: BlockManager(1, 0),
        lambda: manager.add(0, [1]),
        lambda: manager.add(1, []),
        lambda: manager.fork(0, 0),
        lambda: bytes_per_token(0),
        lambda: memory([]),
        lambda: memory([9000]),
        lambda: key_of_tokens_alone([1], 0),
    ):
        with pytest.raises(ValueError, match=r"为正|已存在|长度须|块大小"):
            call()
