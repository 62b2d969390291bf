# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 显存账本
#
# 训练一个模型，显存花在哪里？这一页用站内已测试的公式（Q033 的模型状态、I1-2 的激活）记一本账，依次改**精度清单、ZeRO stage、序列长与重算**，看每一项怎么变。所有数字在构建时真的算出来；想试别的模型，下载本页的 `.py` 文件改第一格的参数。
#
# 口径：GB = 10⁹ 字节；不含 CUDA 上下文、通信缓冲与分配器碎片，所以是**下限**。

# %%
from IPython.display import HTML

from snippets.common.chart import bars, lines
from snippets.deep_learning.training.zero import INVENTORIES, state_bytes
from snippets.infra.memory.activation_memory import LLAMA3_8B, LLAMA3_70B, decoder_bytes, logits_bytes

MODEL, PSI = LLAMA3_8B, 8.03e9  # 参数量
TOKENS, RANKS = 8192, 8  # 一个 micro-batch 的 token 数、数据并行度

# %% [markdown]
# ## 精度清单：16、18 还是 20 字节 { #inventory }
#
# 同样叫“混合精度 Adam”，每参数可以是 16、18 或 20 字节，差别在梯度存成什么。先写清清单，再谈总数：

# %%
for name, inventory in INVENTORIES.items():
    print(f"{inventory.total * PSI / 1e9:6.1f} GB  {name}")

# %% [markdown]
# 20 字节比 16 字节多出 $4\Psi = 32$ GB，相当于一张卡的四成。
#
# ## ZeRO 切掉了哪一块 { #zero }

# %%
stages = ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
states = [[size / 1e9 for size in state_bytes(PSI, RANKS, stage)] for stage in range(4)]
HTML(
    bars(
        stages,
        {name: [row[i] for row in states] for i, name in enumerate(("权重", "梯度", "优化器状态"))},
        title=f"Llama-3-8B，{RANKS} 卡，每卡模型状态",
        unit="GB",
        refs={"80 GB": 80},
    )
)

# %% [markdown]
# ZeRO-1 一步就从 128.5 GB 降到 44.2 GB：优化器状态占 16 字节里的 12。到 ZeRO-2 为止，通信量与 DDP 相同，见 Q033。
#
# ## 加上激活与 logits { #activations }
#
# ZeRO 不减激活。下面把一个 micro-batch 的激活按三种重算方式加进来：


# %%
def ledger(stage: int, tokens: int, recompute: str) -> dict[str, float]:
    """一张卡的账，GB。"""
    weights, gradients, optimizer = (size / 1e9 for size in state_bytes(PSI, RANKS, stage))
    return {
        "权重": weights,
        "梯度": gradients,
        "优化器状态": optimizer,
        "激活": decoder_bytes(MODEL, tokens, recompute) / 1e9,
        "logits 峰值": logits_bytes(MODEL, tokens, "backward") / 1e9,
    }


cases = {"不重算": "none", "只重算 SwiGLU": "swiglu", "全重算": "full"}
books = {name: ledger(3, TOKENS, mode) for name, mode in cases.items()}
HTML(
    bars(
        list(books),
        {item: [book[item] for book in books.values()] for item in books["不重算"]},
        title=f"Llama-3-8B，ZeRO-3 × {RANKS} 卡，{TOKENS} token：每卡总账",
        unit="GB",
        refs={"80 GB": 80},
    )
)

# %%
for name, book in books.items():
    print(f"{name:<10} 合计 {sum(book.values()):5.1f} GB，其中激活 {book['激活']:4.1f} GB")

# %% [markdown]
# 切到 ZeRO-3 之后，模型状态只剩 16 GB，**激活成了大头**；而逐算子的交叉熵在反向到 12 字节每 logit，峰值 12.6 GB，与重算无关，要靠分块交叉熵或词表并行。
#
# ## 序列长多少会放不下 { #length }
#
# 激活与 logits 都随 token 数线性增长（FlashAttention 之后没有平方项）。画出每卡总量：

# %%
lengths = [1024 * 2**k for k in range(7)]
series = {name: [(s, sum(ledger(3, s, mode).values())) for s in lengths] for name, mode in cases.items()}
HTML(
    lines(
        series,
        title=f"Llama-3-8B，ZeRO-3 × {RANKS} 卡：每卡显存随序列长变化",
        x_label="每卡一个 micro-batch 的 token 数",
        y_label="GB",
        x_log=2,
        y_log=10,
        y_refs={"80 GB": 80},
        markers=True,
    )
)


# %%
def longest(mode: str, limit_gb: float = 80.0) -> int:
    """放得进 limit_gb 的最大 token 数：账对 token 数是线性的，直接解出来。"""
    fixed = sum(state_bytes(PSI, RANKS, 3)) / 1e9
    per_token = (decoder_bytes(MODEL, 1, mode) + logits_bytes(MODEL, 1, "backward")) / 1e9
    return int((limit_gb - fixed) / per_token)


for name, mode in cases.items():
    print(f"{name:<10} 最多 {longest(mode):>6,} token")

# %% [markdown]
# 全重算能放下的长度接近不重算的四倍，但此时账上的大头已是 logits：再往上要先治它，再谈上下文并行。
#
# ## 70B 要多少卡 { #seventy }

# %%
for ranks in (8, 16, 32, 64):
    state = sum(state_bytes(70.55e9, ranks, 3)) / 1e9
    rest = {
        name: (decoder_bytes(LLAMA3_70B, TOKENS, mode) + logits_bytes(LLAMA3_70B, TOKENS, "backward")) / 1e9 for name, mode in cases.items()
    }
    fits = [name for name, size in rest.items() if state + size <= 80]
    print(f"{ranks:>3} 卡：状态 {state:6.1f} GB；80 GB 里放得下：{'、'.join(fits) or '都放不下'}")

# %% [markdown]
# 只靠 ZeRO-3 与重算，70B 在 8192 token 下要 32 卡以上，而且只能全重算；所以 70B 的预训练通常再加张量并行与序列并行，把激活也切开（I1-2）。
