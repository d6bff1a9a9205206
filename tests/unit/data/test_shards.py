"""A shard's bytes depend on its content alone, other readers understand them, and half a shard is refused."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from trainer_core.data.tokens.shards import ShardWriter, hash_shard, read_shard, write_shard
from trainer_core.errors import Refused

ENDS = np.array([3, 7, 10], dtype=np.uint64)


@pytest.mark.parametrize("token_type", ["uint16", "uint32"])
def test_round_trip_and_the_safetensors_library_reads_it(tmp_path: Path, token_type: str) -> None:
    tokens = np.arange(10, dtype=token_type) * 6000
    path = tmp_path / "a.safetensors"
    digest = write_shard(path, tokens, ENDS, metadata={"b": "2", "a": "ü"})
    shard = read_shard(path)
    assert shard.tokens.tolist() == tokens.tolist() and shard.tokens.dtype.name == token_type
    assert shard.doc_ends.tolist() == [3, 7, 10] and shard.metadata == {"a": "ü", "b": "2"}
    assert digest == hash_shard(path)
    other = load_file(path)
    assert other["tokens"].dtype == np.dtype(token_type)
    assert np.array_equal(other["tokens"], tokens) and np.array_equal(other["doc_ends"], ENDS)


def test_slices_and_metadata_order_do_not_change_the_bytes(tmp_path: Path) -> None:
    tokens = np.arange(10, dtype=np.uint16)
    one = write_shard(tmp_path / "1", tokens, ENDS, metadata={"a": "1", "b": "2"})
    slices = (tokens[start : start + 3] for start in range(0, 10, 3))
    two = write_shard(
        tmp_path / "2", slices, ENDS, num_tokens=10, token_type="uint16", metadata={"b": "2", "a": "1"}
    )
    assert one == two
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_empty_shard(tmp_path: Path) -> None:
    write_shard(tmp_path / "e", np.empty(0, dtype=np.uint16), np.empty(0, dtype=np.uint64))
    shard = read_shard(tmp_path / "e")
    assert len(shard.tokens) == 0 and len(shard.doc_ends) == 0


def test_every_cut_of_a_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_shard(path, np.arange(10, dtype=np.uint16), ENDS)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(Refused, match="not a complete shard"):
            read_shard(path)
    path.write_bytes(data + b"x")
    with pytest.raises(Refused, match="not a complete shard"):
        read_shard(path)
    with pytest.raises(Refused, match="does not exist"):
        read_shard(tmp_path / "none")


def test_a_writer_that_got_the_wrong_number_of_tokens_does_not_finish(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "a", num_tokens=4, token_type="uint16", doc_ends=ENDS)
    writer.append(np.zeros(3, dtype=np.uint16))
    with pytest.raises(AssertionError):
        writer.finish()
