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
# # 什么时候搬什么：DDP、ZeRO、FSDP2、TP 并排
#
# 在两个 gloo 进程上各训练一步同一个小模型（I1-7 的 4 层 Llama），拦下每一次矩阵乘与每一次集合通信，按发生的次序画成时间线。次序、字节、FLOPs 都是**数出来的**；只有把它们换成秒用了假设的速度。
#
# 口径：字节是环形算法下一个 rank 发出的量；只数矩阵乘；时间线一件接一件，不重叠，所以它回答“什么时候必须等什么”，不回答“能藏住多少”（见 I3-8、I4-2）。

# %%
from IPython.display import HTML

from snippets.common.chart import timeline
from snippets.common.processes import launch
from snippets.infra.memory.what_moves import Event, blocks, record_step, totals

SCHEMES = ("DDP（手写）", "DDP（框架）", "ZeRO-2", "ZeRO-3", "FSDP2（框架）", "TP", "TP + SP")
events = {name: [Event(*event) for event in seen] for name, seen in launch(2, record_step, SCHEMES)[0].items()}
for name in SCHEMES:
    print(name)
    for phase in ("前向", "反向", "更新"):
        seen = totals(events[name], phase)
        parts = [f"{kind} {size / 1e6:.2f} MFLOP" if kind == "计算" else f"{kind} {size:,} 字节" for kind, size in seen.items()]
        print(f"    {phase}：{'；'.join(parts) or '无'}")

# %% [markdown]
# 计算的 FLOPs 七种都相同：切的是放在哪里，不是算多少（张量并行每卡见到两倍的 token，各算一半）。差别全在通信的种类、时刻与大小。
#
# ## 时间线 { #timeline }
#
# 假设每卡 1 GFLOP/s、20 MB/s：这个比例让小模型的图上看得见通信，不代表任何硬件。

# %%
LEGEND = {"前向": "前向", "反向": "反向", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "all_reduce": "all-reduce"}
rows = {name: [(a * 1e3, b * 1e3, kind) for a, b, kind in blocks(events[name], 1e9, 2e7)] for name in SCHEMES}
HTML(timeline(rows, title="一步里，计算与通信的次序", legend=LEGEND, unit="ms"))

# %% [markdown]
# 从上到下看五件事：
#
# - **DDP（手写）** 反向全做完才发，一块也藏不住；框架的 DDP 在反向里发，但小模型装不满一个 25 MiB 的桶，所以仍在最后。真实模型有几百个桶。
# - **ZeRO-2** 每层反向结束就发出那一层的 reduce-scatter，all-gather 挪到更新之后。
# - **ZeRO-3** 前向、反向各层之前都要先聚齐：计算被切成一段一段，**不预取就每段都等**。
# - **FSDP2** 反向一开始连着两个 all-gather：第二个是预取的前一层。根组（嵌入、归一化、输出层）反向不再聚，比手写的 ZeRO-3 少一块。
# - **TP** 通信最碎：每层四次，夹在计算中间，而且下一步的输入就是它的结果，**无法预取**，所以要放在最快的链路上。SP 把每次 all-reduce 换成 reduce-scatter 加 all-gather，总长不变。
#
# ## 换一个带宽 { #bandwidth }

# %%
for bandwidth in (1e7, 1e8, 1e9):
    print(f"{bandwidth / 1e6:.0f} MB/s，通信占比（不重叠）")
    for name in SCHEMES:
        line = blocks(events[name], 1e9, bandwidth)
        waiting = sum(b - a for a, b, kind in line if kind not in ("前向", "反向"))
        print(f"    {100 * waiting / line[-1][1]:3.0f}%  {name}")

# %% [markdown]
# 数据并行的占比与每卡的 token 数成反比：batch 翻倍，计算翻倍、字节不变。张量并行两者一起翻倍，占比不变。这就是“TP 看 $bsh$、FSDP 看 $\Psi$”的来由（I1-4 的追问）。把 `record_step` 里的 `make_batch` 换成更大的 batch，重新运行就能看到。
