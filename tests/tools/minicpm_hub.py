"""The layouts of the open MiniCPM corpora in small, and a tokenizer with their markers.

Every file holds documents until one of them is held out, so that each stratum gives a validation row.
"""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.tools.hub import Hub
from tests.unit.data.inputs import added, byte_tokenizer
from trainer_core.data.recipe.schema import DEFAULT_RECIPE, load_recipe
from trainer_core.data.tokens.holdout import is_held_out

FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
MATH = "openbmb/UltraData-Math"

Rows = Callable[[list[str]], dict[str, list[Any]]]


def write_tokenizer(path: Path) -> None:
    """The byte tokenizer, with the fill-in-the-middle markers beside its nine control tokens."""
    tokenizer = byte_tokenizer()
    for marker in FIM:
        number = len(tokenizer["model"]["vocab"])
        tokenizer["model"]["vocab"][marker] = number
        tokenizer["added_tokens"].append(added(marker, number))
    path.write_text(json.dumps(tokenizer))


def serve(hub: Hub) -> dict[str, str]:
    """All repositories of the recipe; the newest commits by name. One of them renamed a directory before."""
    trees: dict[str, dict[str, bytes]] = {}
    for repo, path, data in _files():
        trees.setdefault(repo, {"README.md": b"a card"})[path] = data
    math = trees[MATH]
    before = {path.replace("-L2-preview/", "-L2/"): data for path, data in math.items()}
    hub.commit(MATH, before, age_hours=2000)
    return {repo: hub.commit(repo, tree) for repo, tree in sorted(trees.items())}


def _files() -> Iterator[tuple[str, str, bytes]]:
    layouts: dict[str, tuple[list[str], Rows]] = {
        "code_l2": (
            [
                "data/UltraData-Code-L2/cpp/UltraData-Code-L2-cpp-part-00001-of-00002.parquet",
                "data/UltraData-Code-L2/cpp/UltraData-Code-L2-cpp-part-00002-of-00002.parquet",
                "data/UltraData-Code-L2/rust/UltraData-Code-L2-rust-part-00001-of-00001.parquet",
            ],
            _code,
        ),
        "code_l3": (
            ["data/UltraData-Code-L3/rs/part-1.parquet", "data/UltraData-Code-L3/sh/part-1.parquet"],
            _code,
        ),
        "stack_v3": (["data/train-00000.parquet", "data/train-00001.parquet"], _repositories),
        "fineweb_en": (
            [
                "data/ultrafineweb_en_v1_4/CC-MAIN-2023-50/part-0001-of-512.parquet",
                "data/ultrafineweb_en_v1_4/CC-MAIN-2023-50/part-0002-of-512.parquet",
                "data/ultrafineweb_en_v1_4/CC-MAIN-2024-10/part-0001-of-512.parquet",
            ],
            _pages,
        ),
        "fineweb_zh": (
            ["data/ultrafineweb_zh/part-1.parquet", "data/ultrafineweb_zh/part-2.parquet"],
            _pages,
        ),
        "fineweb_l1_en_hq": (["data/ultrafineweb_l1_en_hq/CC-MAIN-2024-10/part-1.parquet"], _pages),
        "math_l1": (
            [
                "data/UltraData-Math-L1/CC-MAIN-2022-05/part-1.parquet",
                "data/UltraData-Math-L1/CC-MAIN-2023-06/part-1.parquet",
            ],
            _math,
        ),
        "math_l2": (["data/UltraData-Math-L2-preview/part-1.parquet"], _math),
        "math_l3": (
            [
                f"data/UltraData-Math-L3/{kind}-Synthetic/part-1.parquet"
                for kind in ("Conversation", "QA", "Multi-Style", "Textbook-Exercise")
            ],
            _math,
        ),
        "infllm_v2": (["train/chat.parquet", "train/fim.parquet", "train/long.parquet"], _marked),
    }
    for kind in ("en_qa", "en_multi_style", "zh_qa", "zh_multi_style"):
        layouts[f"fineweb_l3_{kind}"] = ([f"data/{kind}/part-1.parquet"], _math)
    for name, source in load_recipe(DEFAULT_RECIPE).sources.items():
        paths, rows = layouts[name]
        assert source.repo is not None
        for path in paths:
            yield source.repo, path, _parquet(rows(_texts(name, path, source.identity, source.heldout)))
        folder = paths[0].rsplit("/", 1)[0]
        yield source.repo, f"{folder}/_SUCCESS", b""


def _texts(name: str, path: str, identity: str, fraction: float) -> list[str]:
    """Documents until one is held out, by the text that the source's rule makes of them."""
    shape = {"stack_v3": "{0} a\n\n{0} b"}.get(name, "{0}")
    texts: list[str] = []
    held = 0
    while not held or len(texts) < 60:
        text = f"{path} {len(texts)} </s> #include <functional>"
        text = f"<|im_start|>{text}<|im_end|>" if "chat" in path else text
        text = f"<|fim_prefix|>{text}<|fim_suffix|>." if "fim" in path else text
        texts.append(text)
        held += is_held_out(shape.format(text), identity=identity, fraction=fraction)
    return texts


def _code(texts: list[str]) -> dict[str, list[Any]]:
    return {
        "content": texts,
        "size": [len(t) for t in texts],
        "stars": [1.5] * len(texts),
        "lang": ["x"] * len(texts),
    }


def _pages(texts: list[str]) -> dict[str, list[Any]]:
    return {"content": texts, "score": [0.9] * len(texts), "source": ["cc"] * len(texts)}


def _math(texts: list[str]) -> dict[str, list[Any]]:
    return {"uid": [str(i) for i in range(len(texts))], "content": texts}


def _marked(texts: list[str]) -> dict[str, list[Any]]:
    return {"text": texts}


def _repositories(texts: list[str]) -> dict[str, list[Any]]:
    return {
        "repo_path": [f"own/{i}" for i in range(len(texts))],
        "github_metadata": [{"stars": i, "topics": ["x"]} for i in range(len(texts))],
        "num_files": [2] * len(texts),
        "files": [
            [{"content_id": "1", "content": f"{t} a"}, {"content_id": "2", "content": f"{t} b"}]
            for t in texts
        ],
    }


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd", row_group_size=50)
    return sink.getvalue()
