"""Shards: files of tokens with their document ends, in the safetensors format.

A shard holds `doc_ends` (U64, positions just after each document's EOS) and `tokens` (U16 or U32), and
string metadata. Bytes are a function of the content alone; the writer hashes them while it writes and fsyncs
them before it returns. A shard that no record names carries that hash in itself: it is sealed. Readers get
memory maps. Nothing here knows what a cycle is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainer_core.errors import DiskFull, Refused, disk_full

TokenType = Literal["uint16", "uint32"]
TokenArray = NDArray[Any]

_NAMES: dict[TokenType, str] = {"uint16": "U16", "uint32": "U32"}
_TYPES: dict[str, TokenType] = {name: key for key, name in _NAMES.items()}
_HASH_SLICE = 1 << 22
_SLICES_PER_BEAT = 16
_SEAL = "blake2b"
_UNSEALED = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Shard:
    """An open shard; the arrays are read-only memory maps."""

    tokens: TokenArray
    """All tokens of the shard, uint16 or uint32."""
    doc_ends: NDArray[np.uint64]
    """Positions just after each document that ends in this shard, ascending."""
    metadata: dict[str, str]
    """Facts that the writer stored."""


class ShardWriter:
    """Writes one shard front to back: `append` token slices, then `finish`."""

    def __init__(
        self,
        path: Path,
        *,
        num_tokens: int,
        token_type: TokenType,
        doc_ends: NDArray[np.uint64],
        metadata: Mapping[str, str] | None = None,
        sealed: bool = False,
    ) -> None:
        """Open `path` and write all that comes before the tokens; a sealed shard's metadata gets its hash."""
        self._path = path
        metadata = dict(metadata or {}) | ({_SEAL: _UNSEALED} if sealed else {})
        self._dtype = np.dtype(token_type).newbyteorder("<")
        self._left = num_tokens
        self._digest = hashlib.blake2b(digest_size=32)
        ends = np.ascontiguousarray(doc_ends, dtype="<u8")
        self._file = open(path, "wb")  # noqa: SIM115 (closed by finish or abort)
        try:
            header = _header(num_tokens, token_type, len(ends), metadata)
            self._seal_at = _seal_position(header) if sealed else None
            self._write(header)
            self._write(ends.tobytes())
        except BaseException:
            self._file.close()
            raise

    def append(self, tokens: TokenArray) -> None:
        """Write the next tokens."""
        assert len(tokens) <= self._left, "more tokens than announced"
        self._left -= len(tokens)
        try:
            self._write(np.ascontiguousarray(tokens, dtype=self._dtype).tobytes())
        except BaseException:
            self._file.close()
            raise

    def finish(self) -> str:
        """Make the file durable and return the hex blake2b of its bytes, taken before they are sealed."""
        assert self._left == 0, f"{self._left} announced tokens are missing"
        try:
            if self._seal_at is not None:
                self._file.seek(self._seal_at)
                self._file.write(self._digest.hexdigest().encode("ascii"))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._full(error) from error
        finally:
            self._file.close()
        return self._digest.hexdigest()

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise self._full(error) from error

    def _full(self, error: OSError) -> Exception:
        if disk_full(error):
            return DiskFull(f"{self._path}: no space left for this shard; free space and start again")
        return error


def _header(num_tokens: int, token_type: TokenType, num_docs: int, metadata: Mapping[str, str]) -> bytes:
    middle = 8 * num_docs
    end = middle + num_tokens * np.dtype(token_type).itemsize
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    header["doc_ends"] = {"dtype": "U64", "shape": [num_docs], "data_offsets": [0, middle]}
    header["tokens"] = {"dtype": _NAMES[token_type], "shape": [num_tokens], "data_offsets": [middle, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _seal_position(header: bytes) -> int:
    """Where the hash stands in the header of a sealed shard."""
    return header.index(f'"{_SEAL}":"'.encode("ascii")) + len(_SEAL) + 4


def write_shard(
    path: Path,
    tokens: TokenArray | Iterable[TokenArray],
    doc_ends: NDArray[np.uint64],
    *,
    num_tokens: int | None = None,
    token_type: TokenType | None = None,
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write a shard from an array, or from slices with `num_tokens` and `token_type` given; its blake2b."""
    if isinstance(tokens, np.ndarray):
        num_tokens = len(tokens)
        token_type = token_type or ("uint16" if tokens.dtype.itemsize == 2 else "uint32")
        tokens = [tokens]
    assert num_tokens is not None and token_type is not None
    writer = ShardWriter(
        path, num_tokens=num_tokens, token_type=token_type, doc_ends=doc_ends, metadata=metadata
    )
    for chunk in tokens:
        writer.append(chunk)
    return writer.finish()


def read_shard(path: Path, *, way_out: str = "restore it") -> Shard:
    """Open a shard as memory maps. Raises Refused, with the way out, when it is missing, cut or no shard."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = os.fstat(file.fileno()).st_size
            if not 0 < length <= size - 8:
                raise ValueError("no header")
            header = json.loads(file.read(length))
        if 8 + length + header["tokens"]["data_offsets"][1] != size:
            raise ValueError("cut or too long")
        ends = _map(path, 8 + length, header["doc_ends"], np.dtype("<u8"))
        kind = np.dtype(_TYPES[header["tokens"]["dtype"]]).newbyteorder("<")
        tokens = _map(path, 8 + length, header["tokens"], kind)
    except FileNotFoundError:
        raise Refused(f"{path}: this shard does not exist; {way_out}") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        raise Refused(f"{path}: not a complete shard; {way_out}") from None
    return Shard(tokens=tokens, doc_ends=ends, metadata=header.get("__metadata__", {}))


def _map(path: Path, base: int, tensor: Mapping[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    (count,) = tensor["shape"]
    if count == 0:
        return np.empty(0, dtype=dtype)
    offset = base + tensor["data_offsets"][0]
    # A plain array over the map: slicing the memmap class itself costs more than reading a short row.
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,)).view(np.ndarray)


def hash_shard(path: Path, *, beat: Callable[[], None] = lambda: None) -> str:
    """Hex blake2b of a shard file's bytes, as the manifest names it; calls `beat` every 64 MiB."""
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        for number, chunk in enumerate(iter(lambda: file.read(_HASH_SLICE), b"")):
            digest.update(chunk)
            if number % _SLICES_PER_BEAT == 0:
                beat()
    return digest.hexdigest()


def check_seal(path: Path, *, way_out: str) -> None:
    """Raise Refused, with the way out, when the bytes of a sealed shard are not those that were written."""
    try:
        with open(path, "rb") as file:
            size = file.read(8)
            header = size + file.read(int.from_bytes(size, "little"))
            start = _seal_position(header)
            end = start + len(_UNSEALED)
            digest = hashlib.blake2b(
                header[:start] + _UNSEALED.encode("ascii") + header[end:], digest_size=32
            )
            for chunk in iter(lambda: file.read(_HASH_SLICE), b""):
                digest.update(chunk)
    except FileNotFoundError:
        raise Refused(f"{path}: this shard does not exist; {way_out}") from None
    except ValueError:
        raise Refused(f"{path}: damaged: it carries no hash; {way_out}") from None
    sealed = header[start:end].decode("ascii", "replace")
    if digest.hexdigest() != sealed:
        raise Refused(f"{path}: damaged: blake2b is {digest.hexdigest()}, {sealed} was written; {way_out}")
