"""The quickstart: from nothing to a trained line through Prefect, in a few minutes on two CPU cores.

    python examples/quickstart/run.py [--model PRESET] [--work DIR]

It runs the commands that you would type, and prints each. Every step that is already done is left out, so it
may be interrupted and started again. Files go below `--work` (`.quickstart` in the checkout); the server and
the workers stay until `nstrain down` (or `make down`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.api import Api
from deployments.follow import Submitted, running_server, wait_final
from deployments.home import Home, read_record
from deployments.prefect_profile import NAME as PROFILE
from trainer_core.errors import NstrainError, Refused
from trainer_core.line.files import read_json, write_json
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.line.status import line_status

CYCLE_TOKENS = 65_536
NUM_CYCLES = 3
TOKENS_PER_UPDATE = 1_024
END_TOKENS = CYCLE_TOKENS * NUM_CYCLES
MODELS = ("nano-cpu", "llama-cpu", "gpt2-cpu")
"""Presets that two cores train in time; the first is the default."""
SCHEDULE = [
    {"from": 0, "to": 16_384, "kind": "warmup"},
    {"from": 16_384, "to": 131_072, "kind": "constant"},
    {"from": 131_072, "to": END_TOKENS, "kind": "decay"},
]

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
BARS = "▁▂▃▄▅▆▇█"


class StepFailed(Exception):
    """A command of the quickstart ended with an error, which it has printed itself."""

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass(frozen=True)
class Work:
    """Files of the quickstart, and the model that it trains."""

    root: Path
    model: str

    @property
    def host(self) -> Path:
        return self.root / "host.json"

    @property
    def sample(self) -> Path:
        return self.root / "sample"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def line(self) -> Path:
        return self.root / "trunk"


def say(text: str = "") -> None:
    print(text, flush=True)


def nstrain(*arguments: str | Path) -> None:
    """Run an `nstrain` command with its output; raises StepFailed when it fails."""
    words = [str(argument) for argument in arguments]
    say(f"\n$ {shlex.join(['nstrain', *words])}")
    code = subprocess.run([str(BIN / "nstrain"), *words]).returncode
    if code != 0:
        raise StepFailed(code)


def refuse_other_model(work: Work) -> None:
    """A line keeps its model: one that is there with another would be continued, or shown, instead."""
    if not LinePaths(work.line).run_json.exists():
        return
    found = read_json(LinePaths(work.line).run_json)["model"]["name"]
    if found != work.model:
        raise Refused(
            f"{work.line}: trains {found}, not {work.model}; to train {work.model} on the same data "
            f"remove it: {shlex.join(['rm', '-r', str(work.line)])}"
        )


def prepare(work: Work) -> None:
    """Sample corpus, data line, training line: each only if it is not there yet."""
    if not (work.sample / "sample.json").exists():
        nstrain("sample", "--out", work.sample)
    facts = read_json(work.sample / "sample.json")
    data = DataPaths(work.data)
    if not data.data.exists():
        nstrain(
            *("data", "init", "--work", work.data, "--recipe", work.sample / "recipe.json"),
            *("--tokenizer", work.sample / "tokenizer" / "tokenizer.json"),
            *("--eos-id", str(facts["eos_id"]), "--cycle-tokens", str(CYCLE_TOKENS)),
        )
    if not LinePaths(work.line).run_json.exists():
        nstrain("data", "val", "--work", work.data)
        nstrain(
            *("new", work.line, "--model", work.model, "--data", work.data, "--peak-lr", "3e-3"),
            *("--tokens-per-update", str(TOKENS_PER_UPDATE)),
            *("--set", f"schedule={json.dumps(SCHEDULE)}"),
        )


def train(work: Work) -> None:
    """`prefect deployment run trunk`, then wait for the end with the progress on the terminal."""
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    environment["PREFECT_PROFILE"] = PROFILE
    say("\n$ prefect deployment run trunk")
    command = [str(BIN / "prefect"), "deployment", "run", "trunk"]
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    found = re.search(r"UUID: ([0-9a-f-]{36})", answer.stdout)
    if answer.returncode != 0 or found is None:
        say(answer.stdout)
        raise StepFailed(answer.returncode or 1)
    record = running_server()
    run = Api(record.url).run(found[1])
    submitted = Submitted(id=run["id"], name=run["name"], url=f"{record.ui}/runs/flow-run/{run['id']}")
    say(f"the run: {submitted.url}")
    code = wait_final(submitted, work.line, say=say)
    if code != 0:
        say(f"the run did not finish; see {LinePaths(work.line).run_log} and {Home.default().logs}")
        raise StepFailed(code)


def curve(losses: list[float], width: int = 64) -> str:
    """Losses as a line of bars, each the mean of its share of the updates."""
    size = max(1, -(-len(losses) // width))
    means = [sum(part) / len(part) for part in (losses[i : i + size] for i in range(0, len(losses), size))]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def cycle_table(rows: list[dict[str, Any]]) -> list[str]:
    """One line per cycle: updates, mean loss, tokens per second."""
    table = [f"  {'cycle':>5}  {'updates':>7}  {'mean loss':>9}  {'tokens/s':>9}"]
    for cycle in sorted({row["cycle"] for row in rows}):
        part = [row for row in rows if row["cycle"] == cycle]
        seconds = sum(sum(row["seconds"].values()) for row in part)
        loss = sum(row["train/loss"] for row in part) / len(part)
        rate = len(part) * TOKENS_PER_UPDATE / seconds if seconds else 0.0
        table.append(f"  {cycle:>5}  {len(part):>7}  {loss:>9.4f}  {rate:>9,.0f}")
    return table


def report(work: Work) -> None:
    """What was trained, how fast, and where everything is."""
    rows = live_rows(LinePaths(work.line).metrics)
    losses = [row["train/loss"] for row in rows]
    first, last = sum(losses[:5]) / len(losses[:5]), sum(losses[-20:]) / len(losses[-20:])
    say(f"\nloss  {curve(losses)}")
    say(f"      {first:.3f} (first 5 updates) -> {last:.3f} (last 20 of {len(losses)})\n")
    for text in cycle_table(rows):
        say(text)
    status = line_status(work.line)
    rate = status["tokens_per_second"] or 0.0
    say(f"\n  {status['tokens']:,} tokens; {rate:,.0f} tokens/s over the last updates")
    say(f"\n  line         {work.line}  (run.json, metrics.jsonl, events.jsonl, checkpoints/)")
    say(f"  data line    {work.data}  (manifests/ of every cycle; the shards are deleted once trained)")
    say(f"  sample text  {work.sample}")
    record = read_record(Home.default())
    if record.server_alive():
        say(f"  UI           {record.ui}")
        say(f"  its end      {down_command()}  (the server and the workers go on until then)")
    say("\nmore:")
    say(f"  source {shlex.quote(str(BIN / 'activate'))}; export NSTRAIN_HOST={shlex.quote(str(work.host))}")
    say("  nstrain status trunk; nstrain verify trunk; prefect deployment run trunk --watch")


def down_command() -> str:
    """`make down`, with the virtual environment that make has to be told."""
    venv = Path(sys.prefix)
    return "make down" if venv == ROOT / ".venv" else f"make down VENV={shlex.quote(str(venv))}"


def quickstart(work: Work) -> None:
    """All steps, in order."""
    started = time.monotonic()
    refuse_other_model(work)
    work.root.mkdir(parents=True, exist_ok=True)
    if not work.host.exists():
        write_json(work.host, {"format": "host/1", "work_root": str(work.root)})
    os.environ["NSTRAIN_HOST"] = str(work.host)
    if (work.line / "run.json").exists() and line_status(work.line)["state"] == "finished":
        say(f"the line {work.line} is finished; remove {work.root} to start anew")
        report(work)
        return
    prepare(work)
    nstrain("up")
    train(work)
    report(work)
    say(f"\ndone after {time.monotonic() - started:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=ROOT / ".quickstart", help="folder of its files")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help="preset of the line")
    chosen = parser.parse_args()
    work = Work(root=chosen.work.expanduser().absolute(), model=chosen.model)
    try:
        quickstart(work)
    except StepFailed as failed:
        return failed.code
    except NstrainError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        say("\nleft; a run that was submitted goes on (`nstrain stop`, `nstrain down`)")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
