"""`data init`: what it pins, what it measures, and what it refuses without leaving a data line behind."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.inputs import CONTROLS, EOS, byte_tokenizer, dump, word_tokenizer, write, write_recipe
from trainer_core.data.making.calibration import load_calibration
from trainer_core.data.making.init_report import InitReport
from trainer_core.data.making.initialize import init_data_line, num_segments
from trainer_core.data.plan.predict import predict
from trainer_core.data.sources import TextRule, load_data_line
from trainer_core.data.tokens.holdout import is_held_out
from trainer_core.errors import DataUsedUp, Refused
from trainer_core.line.paths import DataPaths


def documents(name: str, count: int) -> list[str]:
    return [f"{name} document {i} says </s> and {i * 31 % 17}" for i in range(count)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    for stratum, suffix, count in (("x", ".parquet", 60), ("y", ".jsonl.zst", 20)):
        for part in range(3):
            write(root / "code" / stratum / f"part-{part}{suffix}", documents(f"{stratum}{part}", count))
    for i in range(5):
        write(root / "web" / f"{i}.txt", [f"web page {i} " * 30])
    write(root / "web" / "_SUCCESS", [])
    (root / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    return root


def sources(**changes: Any) -> dict[str, Any]:
    return {
        "code": {"folder": "code", "stratum": {"level": 1}},
        "web": {"folder": "web", "heldout": 0},
    } | changes


def init(
    corpus: Path, recipe: dict[str, Any] | None = None, work: str = "line", **changes: Any
) -> InitReport:
    shares = changes.pop("shares", None)
    settings: dict[str, Any] = {
        "recipe": write_recipe(corpus / "recipe.json", recipe or sources(), shares),
        "tokenizer": corpus / "tokenizer.json",
        "eos_id": EOS,
        "cycle_tokens": 1000,
    }
    return init_data_line(corpus.parent / work, **(settings | changes))


def refused(corpus: Path, *args: Any, **changes: Any) -> tuple[str, ...]:
    with pytest.raises(Refused) as error:
        init(corpus, *args, **changes)
    assert not (corpus.parent / "line" / "data.json").exists()
    return error.value.problems


def test_everything_is_pinned(corpus: Path) -> None:
    report = init(corpus, seed=5)
    line = load_data_line(corpus.parent / "line")
    assert line == report.line
    assert (line.seed, line.segments, line.eos_id, line.token_dtype) == (5, 1, EOS, "uint16")
    assert line.tokenizer.largest_id == len(CONTROLS) + 255
    code, web = line.sources
    assert (code.identity, code.text, code.stratum_rule) == (
        "code",
        TextRule(kind="column", column="text"),
        1,
    )
    assert (web.text, web.ignored) == (TextRule(kind="whole"), ("_SUCCESS",))
    assert [file.path for file in code.stratum_files("y")] == [f"y/part-{i}.jsonl.zst" for i in range(3)]
    assert line.piece_at(99).shares == {"code": 1, "web": 1}
    recipe = json.loads(DataPaths(corpus.parent / "line").recipe.read_text())
    assert recipe["sources"]["code"]["folder"] == str(corpus / "code")


def test_stratum_sizes_are_measured_in_trained_tokens(corpus: Path) -> None:
    (code, web) = init(corpus).line.sources
    kept = {"x": 0, "y": 0}
    for stratum, count in (("x", 60), ("y", 20)):
        for part in range(3):
            texts = documents(f"{stratum}{part}", count)
            texts = [text for text in texts if not is_held_out(text, identity="code", fraction=0.01)]
            kept[stratum] += sum(len(text.encode()) + 1 for text in texts)
    for entry in code.strata:
        assert entry.tokens == pytest.approx(kept[entry.name], rel=0.1)
    assert web.strata[0].tokens == 5 * (11 * 30 + 1)
    assert sum(code.estimated_tokens(file.path) for file in code.stratum_files("x")) == pytest.approx(
        code.strata[0].tokens, abs=3
    )


def test_the_report_tells_what_default_matching_would_have_done(corpus: Path) -> None:
    report = init(corpus)
    measured = report.calibration["code"].strata["x"]
    assert measured.default_control_ids == measured.sampled_documents == measured.decoded_exactly > 50
    text = str(report)
    assert "'</s>' (id 1)" in text and "code: share 0.5000" in text and "disk: at most" in text
    assert load_calibration(corpus.parent / "line") == report.calibration


def test_the_digest_depends_on_content_not_on_places(corpus: Path, tmp_path: Path) -> None:
    first = init(corpus).line.digest()
    moved = tmp_path / "moved"
    shutil.copytree(corpus, moved / "corpus")
    assert init(moved / "corpus").line.digest() == first
    write(moved / "corpus" / "web" / "0.txt", ["changed"])
    assert init(moved / "corpus", work="changed").line.digest() != first


def test_nicknames_do_not_change_what_is_held_out(corpus: Path) -> None:
    shutil.copytree(corpus / "code", corpus / "copy")
    named = init(corpus, {"nick": {"folder": "code"}, "named": {"folder": "copy", "id": "the-corpus"}}).line
    assert [source.identity for source in named.sources] == ["code", "the-corpus"]


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("rule", ["none", "file"])
def test_a_source_without_documents_is_refused_by_name(corpus: Path, position: int, rule: str) -> None:
    write(corpus / "void" / "zero.parquet", [])
    write(corpus / "void" / "null.parquet", [None, None])
    write(corpus / "void" / "blank.jsonl", [" ", None, ""])
    order = list(sources().items())
    order.insert(position, ("void", {"folder": "void", "stratum": rule, "text": {"column": "text"}}))
    found = refused(corpus, dict(order), shares={"code": 0.5, "web": 0.25, "void": 0.25})
    assert all(problem.startswith("source 'void': ") for problem in found)
    assert len(found) == (3 if rule == "file" else 1)
    assert "hold no documents" in found[0]


@pytest.mark.parametrize("stratum", ["a", "m", "z"])
def test_an_empty_stratum_is_refused_by_name(corpus: Path, stratum: str) -> None:
    for name in ("a", "m", "z"):
        write(corpus / "three" / name / "1.jsonl", ["" if name == stratum else f"text of {name}"])
    found = refused(corpus, {"three": {"folder": "three", "stratum": {"level": 1}, "heldout": 0}})
    assert (
        len(found) == 1 and f"source 'three': stratum '{stratum}': its 1 files hold no documents" in found[0]
    )


def test_a_stratum_whose_first_file_is_empty_is_measured_on_another(corpus: Path) -> None:
    for i in range(8):
        write(corpus / "mixed" / f"{i}.jsonl", [] if i != 6 else ["only text"])
    report = init(corpus, {"mixed": {"folder": "mixed", "heldout": 0}}, cycle_tokens=10)
    assert report.calibration["mixed"].strata["all"].file == "6.jsonl"


def test_recipe_tokenizer_and_arguments_are_checked_together(corpus: Path) -> None:
    found = refused(corpus, sources(web={"folder": "gone"}), eos_id=4_000, cycle_tokens=0)
    assert len(found) == 3
    assert "cycle_tokens 0" in found[0] and "'gone' is not a folder" in found[1]
    assert "end-of-document id 4000 is not in the tokenizer" in found[2]


def test_markers_must_be_added_tokens(corpus: Path) -> None:
    found = refused(corpus, sources(web={"folder": "web", "markers": ["<nope>"]}))
    assert len(found) == 1 and found[0].startswith("source 'web': marker '<nope>' is no added token")


def test_a_cut_file_or_a_file_without_the_column_is_refused(corpus: Path) -> None:
    path = corpus / "code" / "x" / "part-1.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert "part-1.parquet: truncated" in refused(corpus)[0]
    write(path, ["other"], column="content")
    assert "part-1.parquet" in refused(corpus)[0]


def test_text_columns_that_differ_between_strata_are_refused(corpus: Path) -> None:
    for i in range(3):
        write(corpus / "code" / "y" / f"part-{i}.jsonl.zst", documents("y", 5), column="body")
    assert "the text column differs between files: 'text' in x/" in refused(corpus)[0]


def test_an_existing_data_line_is_never_overwritten(corpus: Path) -> None:
    init(corpus)
    before = DataPaths(corpus.parent / "line").data.read_bytes()
    with pytest.raises(Refused, match="exists already"):
        init(corpus, seed=9)
    assert DataPaths(corpus.parent / "line").data.read_bytes() == before


def test_calibration_is_taken_over_where_it_fits(corpus: Path) -> None:
    first = init(corpus)
    path = DataPaths(corpus.parent / "line").calibration
    known = json.loads(path.read_text())
    known["sources"]["code"]["strata"]["x"]["sampled_tokens"] *= 2
    path.write_text(json.dumps(known))
    second = init(corpus, work="second", calibration_from=corpus.parent / "line")
    (x1, y1), (x2, y2) = first.line.source("code").strata, second.line.source("code").strata
    assert x2.tokens == pytest.approx(2 * x1.tokens, abs=2) and y2 == y1
    other = sources(code={"folder": "code", "stratum": {"level": 1}, "heldout": 0.1})
    third = init(corpus, other, work="third", calibration_from=corpus.parent / "line")
    assert third.line.source("code").strata[0].tokens < 1.2 * x1.tokens


def test_wide_ids_get_wide_tokens(corpus: Path) -> None:
    vocab = {"<unk>": 0, "</s>": 1, "page": 65_536}
    (corpus / "tokenizer.json").write_bytes(dump(word_tokenizer(vocab)))
    line = init(corpus, cycle_tokens=900).line
    assert (line.tokenizer.vocab_size, line.token_dtype) == (3, "uint32")


def test_use_up_is_predicted_by_stratum(corpus: Path) -> None:
    line = init(corpus, cycle_tokens=1000).line
    prediction = predict(line, 4)
    assert {s.stratum: s.used_up_at for s in prediction.strata if s.source == "web"} == {"all": 3}
    with pytest.raises(
        DataUsedUp, match="source 'web', stratum 'all': used up at cycle 3, about 345 tokens short"
    ):
        prediction.require_enough()
    predict(line, 3).require_enough()


def test_a_cycle_larger_than_the_corpus_is_refused_before_anything_is_written(corpus: Path) -> None:
    found = refused(corpus, cycle_tokens=10**6)
    assert len(found) == 2
    assert [path.name for path in (corpus.parent / "line").iterdir()] == ["calibration.part.json"]
    report = init(corpus)
    assert report.taken_over["web"] == ("all",), "what was measured is used again"
    for problem, name in zip(found, ("code", "web"), strict=True):
        assert f"source {name!r}: holds about {report.source_tokens(name):,} tokens" in problem
        assert "a cycle of 1,000,000" in problem and "smaller --cycle-tokens" in problem


def test_a_damaged_calibration_is_refused_by_name(corpus: Path) -> None:
    init(corpus)
    path = DataPaths(corpus.parent / "line").calibration
    good = json.loads(path.read_text())
    source = next(iter(good["sources"].values()))
    stratum = next(iter(source["strata"].values()))
    damaged = [{}, {"format": good["format"]}, {**good, "sources": 3}]
    damaged.append(
        {**good, "sources": {"web": {**source, "strata": {"all": {**stratum, "sampled_bytes": 0}}}}}
    )
    damaged.append({**good, "sources": {"web": {**source, "strata": {"all": {**stratum, "file": 0}}}}})
    for content in damaged:
        path.write_text(json.dumps(content))
        with pytest.raises(Refused, match=r"calibration\.json: .*without --calibration-from"):
            load_calibration(path.parent)


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_out_of_range_is_refused(corpus: Path, seed: int) -> None:
    with pytest.raises(Refused, match=f"seed {seed}: expected"):
        init(corpus, seed=seed)


def test_a_folder_that_is_no_data_line(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(Refused, match="nstrain data init"):
        load_data_line(tmp_path)
    init(corpus)
    path = DataPaths(corpus.parent / "line").data
    value = json.loads(path.read_text())
    del value["sources"]["web"]["files"]
    path.write_text(json.dumps(value))
    with pytest.raises(Refused, match="damaged or edited by hand"):
        load_data_line(path.parent)
    good = init(corpus, work="second").line.to_json()
    for key, damaged in (
        ("cycle_tokens", "65536"),
        ("cycle_tokens", 0),
        ("seed", None),
        ("planner_version", 99),
        ("pieces", []),
        ("pieces", [{**good["pieces"][0], "from_cycle": 1}]),
        ("pieces", [{**good["pieces"][0], "shares": {"web": 1}}]),
        ("sources", {**good["sources"], "web": {**good["sources"]["web"], "strata": {"all": 0}}}),
        ("sources", {**good["sources"], "web": {**good["sources"]["web"], "heldout": "0.1"}}),
        ("tokenizer", {}),
    ):
        path.write_text(json.dumps(good | {key: damaged}))
        with pytest.raises(Refused, match=r"data\.json: damaged or edited by hand .*restore the file"):
            load_data_line(path.parent)
    path.write_text(json.dumps(value | {"format": "data/9"}))
    with pytest.raises(Refused, match="data/9"):
        load_data_line(path.parent)


@pytest.mark.parametrize(
    ("cycle_tokens", "expected"), [(1, 1), (65_536, 1), (1 << 24, 4), (20_000_000_000, 64)]
)
def test_a_large_cycle_has_few_segments(cycle_tokens: int, expected: int) -> None:
    assert num_segments(cycle_tokens) == expected


def test_two_sources_never_read_the_same_text_of_a_file(corpus: Path) -> None:
    (corpus / "link").symlink_to(corpus / "code")
    twice = {"folder": "link", "glob": "x/*-1.parquet", "id": "other"}
    (problem,) = refused(corpus, sources(twice=twice))
    assert "source 'twice': 1 of its files are those of source 'code'" in problem and "part-1" in problem
    rows = [{"text": f"question {i}", "answer": f"answer {i}"} for i in range(50)]
    (corpus / "pairs").mkdir()
    (corpus / "pairs" / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = {
        name: {"folder": "pairs", "text": {"column": name}, "id": name, "heldout": 0}
        for name in ("text", "answer")
    }
    report = init(corpus, columns, cycle_tokens=500)
    assert [spec.name for spec in report.line.sources] == ["text", "answer"]


@pytest.mark.parametrize("tokens", [0, -1, 10**12 + 1, 10**30])
def test_a_cycle_size_out_of_range_is_refused(corpus: Path, tokens: int) -> None:
    (problem,) = refused(corpus, cycle_tokens=tokens)
    assert str(tokens) in problem and "at least 1 and at most 10^12" in problem


def test_names_that_our_own_files_need_are_refused(corpus: Path) -> None:
    web = {"folder": "web", "heldout": 0}
    (problem,) = refused(corpus, {"rows-16.json": web})
    assert "rows-16.json" in problem and "choose another" in problem
    (corpus / "web" / ("n" * 197 + ".txt")).write_text("long")
    (problem,) = refused(corpus, sources())
    assert "1 file names are longer than 200 bytes" in problem and "narrow" in problem
