"""Text for the search index: Markdown, formulas and code without their markup."""

import html
import keyword
import re

SIGNS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "varepsilon": "ε", "zeta": "ζ", "eta": "η", "theta": "θ",
    "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ",
    "varphi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π",
    "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
    "times": "×", "cdot": "·", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "approx": "≈", "sim": "∼",
    "infty": "∞", "sum": "∑", "prod": "∏", "int": "∫", "partial": "∂", "nabla": "∇", "sqrt": "√", "pm": "±", "in": "∈", "to": "→",
    "rightarrow": "→", "leftarrow": "←", "odot": "⊙", "oplus": "⊕", "otimes": "⊗", "top": "T", "ell": "ℓ", "cdots": "…", "ldots": "…",
    "dots": "…", "mid": "|", "|": "‖", "lVert": "‖", "rVert": "‖",
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "ll": "≪", "gg": "≫", "propto": "∝",
}  # fmt: skip
NAMES = {"log", "ln", "exp", "max", "min", "arg", "softmax", "sin", "cos", "tanh", "det", "lim", "sup", "inf", "Pr", "mod"}

FRACTION = re.compile(r"\\[dt]?frac *(?:\{(?P<over>[^{}]*)\}|(?P<o>\w)) *(?:\{(?P<under>[^{}]*)\}|(?P<u>\w))")
APPLIED = re.compile(r"\\(?![dt]?frac)[A-Za-z]+ *\{([^{}]*)\}")
GROUP = re.compile(r"(?<!frac)(?<!\})\{([^{}]*)\}")
COMMAND = re.compile(r"\\([A-Za-z]+|.)")
ENVIRONMENT = re.compile(r"\\(?:begin|end) *\{\w+\*?\}(?: *\{[lcr|]*\})?")


def _sign(match: re.Match) -> str:
    name = match[1]
    if name in NAMES:
        return f" {name} "
    return SIGNS.get(name, match[0] if name.isalpha() else " ")


def formula_text(latex: str) -> str:
    r"""LaTeX as one would type it: letters, digits and signs without markup.

    >>> formula_text(r"\frac{2\Psi}{N_{\text{dp}}} \approx 16\,\mathrm{FLOPs}")
    '2Ψ/N_dp ≈ 16 FLOPs'
    >>> formula_text(r"\operatorname{softmax}\left(QK^\top / \sqrt{d_k}\right)V")
    'softmax(QK^T / √d_k)V'
    """
    text, before = COMMAND.sub(_sign, ENVIRONMENT.sub(" ", latex)), None
    while text != before:  # from the innermost braces outwards
        before = text
        text = FRACTION.sub(lambda match: f"{match['over'] or match['o']}/{match['under'] or match['u']}", text)
        text = APPLIED.sub(r"\1", text)
        text = GROUP.sub(r"\1", text)
    text = COMMAND.sub("", text)
    return " ".join(re.sub(r"[{}&~]", "", text).split())


FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$(?!\s)([^$\n]+?)(?<!\s)\$", re.S)
BLOCK_TITLE = re.compile(r'^ *(?:!!!|\?\?\?\+?|===[!+]?) *[\w -]*(?:"(?P<title>.*?)")? *$', re.M)
DROPPED = re.compile(
    r"^\*?\[(?!\^)[^\]]+\]: .*$"  # link targets, abbreviations
    r"|^ *\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$"  # the rule below a table's head
    r"|〔[^〕]*〕|\{ *[#.:][^}\n]*\}|\{\{.*?\}\}",  # errata markers, attributes, build markers
    re.M,
)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)]*\)|\[[^\]]*\])")
FOOTNOTE = re.compile(r"\[\^[^\]]+\]:?")
TAG = re.compile(r"</?[A-Za-z][^<>]*>|<!--.*?-->", re.S)
INLINE_CODE = re.compile(r"(`+)(.+?)\1", re.S)
EMPHASIS = re.compile(r"(\*{1,3}|~~|==)(?=\S)(.+?)(?<=\S)\1", re.S)
ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
LINE_START = re.compile(r"^ *(?:#{1,6} +|> ?|[-*+] +(?:\[[ x]\] +)?|\d+\. +)", re.M)


def plain_text(markdown: str) -> str:
    """Markdown (without fenced code) as its reader sees it.

    >>> plain_text("**ZeRO-1** 只切优化器状态，[论文][zero] 记为 $P_{os}$，每卡 `4Ψ` 字节 { #numbers }")
    'ZeRO-1 只切优化器状态，论文 记为 P_os，每卡 4Ψ 字节'
    """
    held: list[str] = []

    def hold(text: str) -> str:
        held.append(text)
        return f"\x00{len(held) - 1}\x00"

    text = INLINE_CODE.sub(lambda match: hold(match[2]), markdown)
    text = FORMULA.sub(lambda match: hold(formula_text(match[1] or match[2])), text)
    text = BLOCK_TITLE.sub(lambda match: match["title"] or "", text)
    text = DROPPED.sub("", text)
    text = FOOTNOTE.sub("", text)
    text = TAG.sub(" ", text)
    while LINK.search(text):
        text = LINK.sub(r"\1", text)
    text = LINE_START.sub("", text)
    text = EMPHASIS.sub(r"\2", text)
    text = ESCAPED.sub(r"\1", re.sub(r" *(?<!\\)\| *", " ", html.unescape(text)))
    while "\x00" in text:
        text = re.sub(r"\x00(\d+)\x00", lambda match: held[int(match[1])], text)
    return " ".join(text.split())


CODE_WORD = re.compile(r"[A-Za-z_][\w.-]*\w|[\u4e00-\u9fff]+")


def code_words(code: str) -> str:
    """The distinct names and Chinese words of some code, in order; keywords of Python left out.

    >>> code_words("import torch\\nout = torch.softmax(q @ k.T)  # 打分\\nreturn out")
    'torch out torch.softmax k.T 打分'
    """
    words = dict.fromkeys(CODE_WORD.findall(code))
    return " ".join(word for word in words if not keyword.iskeyword(word))
