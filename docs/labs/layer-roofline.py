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
# # 一层 Transformer 的 roofline
#
# 一层里有十几个算子：谁卡在算力、谁卡在带宽，各要多少时间，融合能省多少？这一页把 Llama-3 的一层拆开，给每个算子算 FLOPs、最少搬的字节、算术强度与时间下限，再比较**训练（prefill）**与**解码（decode）**。分类的道理见 I2-4，怎样用它判断优化空间见 I2-3。
#
# 口径：bf16；每个张量从显存读一次、写一次；注意力是 FlashAttention，因果按实际要算的格子；峰值稠密。所以时间是**下限**，不是测得，也不含通信与核的发射。

# %%
from IPython.display import HTML

from snippets.common.chart import bars, lines
from snippets.infra.mfu.layer_roofline import backward_ops, by_bound, layer_ops, table
from snippets.tools.presets import GPUS, MODELS

MODEL, GPU = MODELS["Llama-3-8B"], GPUS["H100 80GB SXM"]
SEQ = 8192  # 训练的序列长，也是解码时 KV cache 的长度

ridge = GPU.bf16 * 1e12 / (GPU.hbm * 1e9)
print(f"{GPU.name}：稠密 {GPU.bf16:g} TFLOP/s，{GPU.hbm:g} GB/s，拐点 {ridge:.0f} FLOP/B")

# %% [markdown]
# ## 训练前向：一条 8192 { #forward }

# %%
forward = layer_ops(MODEL, 1, SEQ)
print("\n".join(table(forward, GPU)))
times = by_bound(forward, GPU)
print(f"\n合计 {1e6 * sum(times.values()):.0f} µs，其中卡在带宽 {times['带宽'] / sum(times.values()):.0%}")

# %% [markdown]
# 五个矩阵类算子的强度在 1,600 FLOP/B 以上，远过拐点；六个逐元素算子都不超过 1，全卡在带宽。它们的 FLOPs 加起来不到 0.1%，时间却占 10%：**数 FLOPs 看不到它们**。
#
# ## 解码：同一层，换一个世界 { #decode }
#
# 每条序列只来一个 token，权重却要整个读一遍。

# %%
for b in (1, 64, 256):
    ops = layer_ops(MODEL, b, SEQ, decode=True)
    total = sum(op.seconds(GPU) for op in ops)
    cache = next(op for op in ops if op.kind == "attention").seconds(GPU)
    weights = sum(op.seconds(GPU) for op in ops if op.kind == "gemm")
    print(
        f"batch {b:>3}：{1e6 * total:7.1f} µs  矩阵乘 {weights / total:4.0%}  注意力（读 KV cache）{cache / total:4.0%}  每 token {1e6 * total / b:6.1f} µs"
    )

# %%
print("\n".join(table(layer_ops(MODEL, 64, SEQ, decode=True), GPU)))

# %% [markdown]
# batch 加大，矩阵乘的强度跟着涨，权重的读被摊薄；注意力的强度却停在 $a/n_{kv}=4$ FLOP/B 左右，因为每条序列读的是**自己的** KV cache，batch 摊不动它。于是长上下文的大 batch 解码，时间都花在读 KV cache 上：GQA、MLA、KV 量化治的是它。这里只看时间的比例，不管装不装得下：32 层、batch 64 × 8192 的 KV cache 是 68.7 GB，加上 16 GB 权重已超过一张 80 GB 的卡；batch 256 要 275 GB。
#
# 把所有算子放到同一张 roofline 上：

# %%
curve = [(at, min(GPU.bf16, GPU.hbm * at / 1e3)) for at in (2.0**-3, ridge, 2.0**13)]


def place(label, ops, wanted):
    """算子在 roofline 上的位置：(强度, 可达 TFLOP/s)。"""
    return {f"{label} {op.name}": (op.intensity, op.flops / op.seconds(GPU) / 1e12) for op in ops if op.name in wanted}


shown = place("训练", forward, ("gate_up", "归一化 1"))
shown |= place("解码 64", layer_ops(MODEL, 64, SEQ, decode=True), ("gate_up", "注意力"))
HTML(
    lines(
        {"roofline": curve},
        title=f"{MODEL.name} 一层在 {GPU.name} 上的 roofline",
        x_label="算术强度，FLOP/B",
        y_label="TFLOP/s",
        x_log=2,
        y_log=10,
        points=shown,
        x_refs={f"拐点 {ridge:.0f}": ridge},
    )
)

# %% [markdown]
# ## 融合改变了什么 { #fusion }
#
# RoPE 并进 QKV 的尾声，残差并进归一化，SwiGLU 并进 gate_up 的尾声。FLOPs 一个不少，少的是中间结果的一写一读：

# %%
rows = {}
for label, options in {"训练 8192": {"b": 1}, "解码 batch 64": {"b": 64, "decode": True}}.items():
    for kind, fused in (("逐算子", False), ("融合", True)):
        ops = layer_ops(MODEL, s=SEQ, fused=fused, **options)
        rows[f"{label}，{kind}"] = [
            1e6 * sum(op.seconds(GPU) for op in ops if op.kind == name) for name in ("gemm", "attention", "pointwise")
        ]
        print(f"{label}，{kind}：{sum(op.size for op in ops) / 1e6:8.1f} MB  {sum(rows[f'{label}，{kind}']):7.1f} µs")

HTML(
    bars(
        list(rows),
        {name: [row[i] for row in rows.values()] for i, name in enumerate(("矩阵乘", "注意力", "逐元素"))},
        title=f"{MODEL.name} 一层前向的时间下限",
        unit="µs",
    )
)

# %% [markdown]
# 训练前向从 4,630 µs 降到 4,329 µs，省 6.5%。两点保留：训练要为反向留下 gate 与 up，融合核仍得把它们写出来，实际省得少一些（I1-2）；解码时每个逐元素算子不到 2 µs，下限里几乎不占时间，真实的解码里贵的是**发射**，所以靠 CUDA graph，不靠省字节。
#
# ## 前向加反向，换模型换卡 { #training }

# %%
for name in ("Llama-3-8B", "Llama-3-70B", "Llama-3-405B"):
    for card in ("A100 80GB SXM", "H100 80GB SXM", "H200 141GB SXM"):
        gpu, model = GPUS[card], MODELS[name]
        ops = layer_ops(model, 1, SEQ) + backward_ops(model, 1, SEQ)
        total, ideal = sum(op.seconds(gpu) for op in ops), sum(op.flops for op in ops if op.kind != "pointwise") / (gpu.bf16 * 1e12)
        print(f"{name:<13} {card:<15} 一层 {1e3 * total:6.1f} ms，不融合时 MFU 的上限 {ideal / total:.1%}")

# %% [markdown]
# 模型越宽，矩阵乘（随 $h^2$）相对逐元素算子（随 $h$）越重，融合的收益越小；卡的算力长得比带宽快（A100 到 H100），收益越大。这个“上限”只扣了逐元素算子：注意力反向的重算（真做 2.5 倍，这里按 2 倍）、矩阵乘达不到峰值、通信、气泡要另算，见 I2-3 的预算。
#
# 换成自己的模型：改第一格的 `MODEL`、`GPU`、`SEQ`。B200 的拐点约 281 FLOP/B，结论不变；换成 fp8，峰值翻倍而字节只减半，逐元素算子仍多是 bf16，占比更高。
