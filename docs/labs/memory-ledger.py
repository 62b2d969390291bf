# %% [markdown]
# # 显存账本
#
# 待写
