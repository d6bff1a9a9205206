"""A run.json that grows: the data line is told at the next start, what is past and planned never changes."""

import shutil

import pytest
import torch

from tests.tools.real_line import TINY, make_real_line, outcome_of_line
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.data.plan.consumer import read_consumer
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.files import iterate_jsonl, read_json, write_json
from trainer_core.line.status import line_status
from trainer_core.ops.check import check_line
from trainer_core.ops.run import run_inline
from trainer_core.ops.start import start_line

torch.set_num_threads(1)

CYCLE, UPDATE = TINY.cycle_tokens, TINY.update_tokens


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A line of three cycles of 8 updates of 96 tokens in rows of 16, never started."""
    return make_real_line(tmp_path_factory.mktemp("growth") / "line")


@pytest.fixture
def line(pristine):
    """The line at its place, put back to its beginning afterwards."""
    root, kept = pristine.root.parent, pristine.root.parent.with_name("kept")
    if not kept.exists():
        shutil.copytree(root, kept)
    yield pristine
    shutil.rmtree(root)
    shutil.copytree(kept, root)


def run(paths, cycles=None):
    code, message = run_inline(paths.root, cycles=cycles, say=lambda text: None)
    return code, message


def edit(paths, **changes):
    write_json(paths.run_json, read_json(paths.run_json) | changes)


def staged(start, *, end=3 * CYCLE):
    """The schedule with rows of 32 from `start` tokens on, and the shapes of both lengths."""
    return {
        "schedule": [
            {"from": 0, "to": 2 * UPDATE, "kind": "warmup"},
            {"from": 2 * UPDATE, "to": start, "kind": "constant"},
            {"from": start, "to": end, "kind": "decay", "length": 32},
        ],
        "lengths": [{"length": 16, "rows": 4}, {"length": 32, "rows": 2}],
    }


def ramped(start):
    """A batch that doubles at `start` tokens."""
    return {
        "tokens_per_update": [
            {"from": 0, "to": start, "tokens": UPDATE},
            {"from": start, "to": None, "tokens": 2 * UPDATE},
        ]
    }


def test_a_line_that_grew_trains_what_one_with_that_schedule_from_the_start_trains(line):
    data = line.root.parent / "data"
    change = CYCLE + 3 * UPDATE
    edit(line, **staged(change), **ramped(2 * CYCLE))
    assert run(line)[0] == 0
    expected = outcome_of_line(line)
    shapes = [(row["update"], row["shape"]) for row in expected["update"]]
    assert shapes == [(n, "4x16" if n <= 11 else "2x32") for n in range(1, 21)]
    shutil.rmtree(line.root.parent)
    shutil.copytree(line.root.parent.with_name("kept"), line.root.parent)
    assert run(line, cycles=1)[0] == 0
    assert "a start goes on" in line_status(line.root)["reason"]
    edit(line, **staged(change), **ramped(2 * CYCLE))
    assert "a start changes nothing" not in "\n".join(check_line(line.root))
    assert "the next start tells it" in "\n".join(check_line(line.root))
    assert read_consumer(data).row_length(change) == 16
    assert run(line)[0] == 0
    outcome = outcome_of_line(line)
    assert outcome == expected
    consumer = read_consumer(data)
    assert (consumer.row_length(change - 1), consumer.row_length(change)) == (16, 32)
    assert (consumer.batch(2 * CYCLE - 1), consumer.batch(2 * CYCLE)) == (UPDATE, 2 * UPDATE)
    assert (data / "heldout" / "rows-32.json").exists()
    grown = [row for row in iterate_jsonl(line.events) if row["kind"] == "schedule_grown"]
    assert len(grown) == 1
    said = "\n".join(check_line(line.root))
    assert "the next start tells it" not in said
    assert "finished: a start changes nothing" in said
    kept = {c.update: c.kept for c in list_checkpoints(line) if c.kept}
    assert kept == {0: "start", 8: "cycle-end", 11: "length-change", 16: "cycle-end", 20: "end"}


def test_what_is_planned_or_trained_does_not_change(line):
    assert run(line, cycles=1)[0] == 0
    data = line.root.parent / "data"
    preparer = CyclePreparer(data)
    preparer.download(1)
    preparer.tokenize(1)
    before, told = line.run_json.read_bytes(), (data / "consumer.json").read_bytes()
    for changes in (staged(CYCLE + UPDATE), ramped(2 * CYCLE - UPDATE), ramped(CYCLE - UPDATE)):
        line.run_json.write_bytes(before)
        edit(line, **changes)
        for start in (check_line, start_line):
            with pytest.raises(Refused, match=rf"grow at its end and after the {2 * CYCLE:,} tokens that"):
                start(line.root)
    with pytest.raises(Refused) as refused:
        check_line(line.root)
    text = "\n".join(refused.value.problems)
    assert f"tokens_per_update[0]: it only grows at its end, after the {CYCLE:,} tokens that are" in text
    assert f"recorded ['0..: {UPDATE}'], found ['0..{CYCLE - UPDATE}: {UPDATE}'" in text
    assert (data / "consumer.json").read_bytes() == told
    assert not (data / "heldout" / "rows-32.json").exists()
    line.run_json.write_bytes(before)
    assert run(line, cycles=2)[0] == 0


def test_a_schedule_that_grows_while_its_cycle_is_assembled_is_planned_by(line, monkeypatch):
    preparer = CyclePreparer(line.root.parent / "data")
    read, grown = preparer._read, []

    def read_and_grow(source, path):
        if not grown:
            edit(line, **staged(3 * UPDATE))
            grown.append(start_line(line.root))
        return read(source, path)

    monkeypatch.setattr(preparer, "_read", read_and_grow)
    preparer.download(0)
    preparer.tokenize(0)
    assert grown
    manifest = read_json(line.root.parent / "data" / "manifests" / "000000.json")
    assert [part["row_length"] for part in manifest["parts"]] == [16, 32]
    assert run(line, cycles=1)[0] == 0


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (1024, ["a cycle of 768 tokens holds no update of 1,024 tokens"]),
        (
            4096,
            [
                "lengths[1].length: 4096 is longer than the model's 2048 positions",
                "a cycle of 768 tokens holds no update of 4,096 tokens",
            ],
        ),
    ],
)
def test_a_stage_that_cannot_be_fed_or_read_is_refused_at_once(line, length, said):
    edit(line, **stage_of(length))
    with pytest.raises(Refused) as refused:
        check_line(line.root)
    for part in said:
        assert any(part in problem for problem in refused.value.problems)


def test_a_new_length_without_held_out_text_changes_nothing(line):
    data = line.root.parent / "data"
    shutil.rmtree(data / "heldout")
    make_heldout(data, tokens_per_stratum=200)
    edit(line, **stage_of(CYCLE))
    with pytest.raises(Refused, match=r"source code: its held-out text .* fills no row of 768 tokens"):
        start_line(line.root)
    assert read_consumer(data).row_length(CYCLE) == 16
    assert not (data / "heldout" / f"rows-{CYCLE}.json").exists()


def stage_of(length):
    """Rows of a length, one an update, after the first cycle."""
    return {
        "schedule": [
            {"from": 0, "to": CYCLE, "kind": "constant"},
            {"from": CYCLE, "to": None, "kind": "constant", "length": length},
        ],
        "lengths": [{"length": 16, "rows": 4}, {"length": length, "rows": 1}],
        "tokens_per_update": [
            {"from": 0, "to": CYCLE, "tokens": UPDATE},
            {"from": CYCLE, "to": None, "tokens": length},
        ],
    }
