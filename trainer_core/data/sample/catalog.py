"""What the sample corpus takes: fixed distributions, by source and stratum, with shares and weights.

Values only. The list is fixed so that an extra package in the environment changes nothing; a distribution
that is not installed is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

STDLIB = "python's standard library"
"""Stands for the standard library among the distributions."""

OTHER_PYTHON = (
    "networkx", "matplotlib", "pydantic", "pyarrow", "pygments", "fonttools", "mpmath", "rich", "fastapi",
    "jinja2", "cyclopts", "tokenizers", "safetensors", "starlette", "alembic", "websockets", "anyio",
)  # fmt: skip
DESCRIBED = (
    "aiosqlite", "alembic", "anyio", "apprise", "asgi-lifespan", "attrs", "cachetools", "certifi", "cffi",
    "click", "cloudpickle", "contourpy", "coolname", "cryptography", "cycler", "cyclopts", "dateparser",
    "docker", "fastapi", "filelock", "fonttools", "fsspec", "graphviz", "griffe", "h11", "h2", "hpack",
    "httpcore", "httpx", "humanize", "hyperframe", "idna", "jinja2", "jsonpatch", "jsonpointer",
    "jsonschema", "kiwisolver", "mako", "markdown", "markdown-it-py", "markupsafe", "matplotlib", "mdurl",
    "mpmath", "networkx", "numpy", "oauthlib", "orjson", "packaging", "pathspec", "pendulum", "pillow",
    "pluggy", "prefect", "prometheus-client", "psutil", "pyarrow", "pycparser", "pydantic",
    "pydantic-core", "pydantic-settings", "pygments", "pyparsing", "python-dateutil", "python-dotenv",
    "python-slugify", "pytz", "pyyaml", "readchar", "referencing", "regex", "requests", "rich", "rpds-py",
    "safetensors", "semver", "shellingham", "six", "sniffio", "sortedcontainers", "sqlalchemy",
    "starlette", "sympy", "text-unidecode", "tokenizers", "toml", "torch", "tqdm", "triton", "typer",
    "typing-extensions", "typing-inspection", "tzlocal", "urllib3", "uvicorn", "websockets",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StratumPlan:
    """One stratum before it is collected."""

    name: str
    """Its directory or file name."""
    distributions: tuple[str, ...]
    """Installed distributions whose files are taken."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of the files."""
    kind: Literal["file", "docstrings", "description", "licence"] = "file"
    """Whole files, long docstrings inside them, the package's own description, or its licence texts."""
    weight: int = 1
    """Part of the source's bytes, relative to its other strata."""


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """One source before it is collected."""

    name: str
    """Folder name and nickname."""
    share: float
    """Share of the recipe, and of the corpus' bytes."""
    format: Literal["parquet", "jsonl", "jsonl.gz", "jsonl.zst"]
    """How its documents are stored; licences are always plain .txt files."""
    stratum_rule: Any
    """As it is written into the recipe."""
    strata: tuple[StratumPlan, ...]
    """Its strata."""


def _python(name: str, *distributions: str, weight: int) -> StratumPlan:
    return StratumPlan(name=name, distributions=distributions, suffixes=(".py",), weight=weight)


def _native(name: str, *distributions: str, weight: int) -> StratumPlan:
    suffixes = (".h", ".hpp", ".cuh", ".c", ".cpp")
    return StratumPlan(name=name, distributions=distributions, suffixes=suffixes, weight=weight)


_WEB = (("js", ".js", 6), ("css", ".css", 2), ("html", ".html", 1), ("mjs", ".mjs", 1))

CATALOG: tuple[SourcePlan, ...] = (
    SourcePlan(
        name="code-python",
        share=0.4,
        format="parquet",
        stratum_rule={"level": 1},
        strata=(
            _python("stdlib", STDLIB, weight=5),
            _python("torch", "torch", weight=8),
            _python("sympy", "sympy", weight=6),
            _python("prefect", "prefect", weight=3),
            _python("numpy", "numpy", weight=2),
            _python("sqlalchemy", "sqlalchemy", weight=2),
            _python("other", *OTHER_PYTHON, weight=6),
        ),
    ),
    SourcePlan(
        name="code-native",
        share=0.2,
        format="jsonl.zst",
        stratum_rule={"level": 1},
        strata=(
            _native("torch", "torch", weight=9),
            _native("triton", "triton", weight=3),
            _native("pyarrow", "pyarrow", weight=3),
            _native("other", "numpy", "fonttools", weight=1),
        ),
    ),
    SourcePlan(
        name="code-web",
        share=0.1,
        format="jsonl.gz",
        stratum_rule="file",
        strata=tuple(
            StratumPlan(
                name=name,
                distributions=("prefect", "matplotlib", "torch"),
                suffixes=(suffix,),
                weight=weight,
            )
            for name, suffix, weight in (
                ("js", ".js", 6),
                ("css", ".css", 2),
                ("html", ".html", 1),
                ("mjs", ".mjs", 1),
            )
        ),
    ),
    SourcePlan(
        name="docs",
        share=0.2,
        format="jsonl",
        stratum_rule={"level": 1},
        strata=(
            StratumPlan(
                name="docstrings",
                distributions=("torch", "sympy", "numpy", "networkx", "sqlalchemy", "matplotlib", "pyarrow"),
                suffixes=(".py",),
                kind="docstrings",
                weight=12,
            ),
            StratumPlan(name="descriptions", distributions=DESCRIBED, kind="description", weight=3),
            StratumPlan(name="licences", distributions=DESCRIBED, kind="licence", weight=1),
        ),
    ),
    SourcePlan(
        name="stubs",
        share=0.1,
        format="jsonl",
        stratum_rule="none",
        strata=(
            StratumPlan(
                name="all",
                distributions=("torch", "numpy", "matplotlib", "pyarrow", "pydantic-core"),
                suffixes=(".pyi",),
            ),
        ),
    ),
)
