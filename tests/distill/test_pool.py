"""Several compiles at once: how many, in which order, and that an interrupt ends them all."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from distill.aot import Cache, pool
from distill.aot.compiler import Compiled, _fits
from distill.aot.dump import Dump
from distill.aot.pool import compile_all
from distill.config import Config, load
from profiler.errors import ProfilerError, UsageError

GIB = 1 << 30
CONFIGS = [Config(per_device_batch_size=size) for size in (1, 2, 3, 4)]


class Compiler:
    """A compile_step that takes a moment, watches how many run, and fails where it is told to."""

    def __init__(self, compiled, seconds=0.05, held=None, fails=None):
        self.compiled, self.seconds, self.held, self.fails = compiled, seconds, held, fails or {}
        self.lock = threading.Lock()
        self.running = self.most = self.started = self.ended = 0

    def __call__(self, config, topology, *, quick, progress, cache):
        with self.lock:
            self.started += 1
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                progress("compile", 1.0, self.held)
                time.sleep(0.01)
            if config.per_device_batch_size in self.fails:
                raise self.fails[config.per_device_batch_size]
            return self.compiled(config, topology, quick=quick)
        finally:
            with self.lock:
                self.running -= 1
                self.ended += 1


@pytest.fixture
def use(monkeypatch):
    def install(compiler, free_gib=64.0, cores=8):
        monkeypatch.setattr(pool, "compile_step", compiler)
        monkeypatch.setattr(pool, "available_bytes", lambda: None if free_gib is None else int(free_gib * GIB))
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(pool, "_AGAIN_S", 0.01)
        return compiler

    return install


def test_two_run_at_once_and_the_results_keep_their_order(use, compiled):
    compiler, done = use(Compiler(compiled)), []
    found = compile_all(CONFIGS, "v5e-4", finished=lambda index, _: done.append(index))
    assert [each.config for each in found] == CONFIGS
    assert compiler.most == 2
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.parametrize(("free_gib", "cores"), [(2.0, 8), (64.0, 1), (None, 8)])
def test_one_runs_where_memory_or_cores_are_short_or_nobody_knows(use, compiled, free_gib, cores):
    compiler = use(Compiler(compiled), free_gib, cores)
    assert len(compile_all(CONFIGS, "v5e-4")) == 4
    assert compiler.most == 1


def test_what_one_holds_already_is_not_counted_twice(use, compiled):
    # 6 GiB are free. A compile to the end comes to hold 4.5: one that has just begun leaves no room for another.
    assert 6 * GIB < 2 * pool.WHOLE_BYTES
    fresh = use(Compiler(compiled, held=0), 6.0)
    compile_all(CONFIGS, "v5e-4")
    assert fresh.most == 1
    grown = use(Compiler(compiled, held=pool.WHOLE_BYTES), 6.0)
    compile_all(CONFIGS, "v5e-4")
    assert grown.most == 2


def test_a_quick_compile_needs_less_memory(use, compiled):
    compiler = use(Compiler(compiled), 4.0)
    compile_all(CONFIGS, "v5e-4", quick=True)
    assert compiler.most == 2


def test_one_that_fails_does_not_hold_up_the_others(use, compiled):
    use(Compiler(compiled, fails={2: UsageError("the mesh"), 3: ProfilerError("the compiler")}))
    found = compile_all(CONFIGS, "v5e-4")
    assert [str(each) for each in found[1:3]] == ["the mesh", "the compiler"]
    assert [type(found[index]) for index in (0, 3)] == [Compiled, Compiled]


def test_a_bug_in_one_ends_the_others_and_comes_through(use, compiled):
    slow = Compiler(compiled, seconds=30)

    def broken(config, *arguments, **options):
        if config.per_device_batch_size == 2:
            raise ZeroDivisionError
        return slow(config, *arguments, **options)

    use(broken)
    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        compile_all(CONFIGS, "v5e-4")
    assert time.monotonic() - begun < 10
    assert slow.running == 0


def test_an_interrupt_ends_all_that_run_and_starts_no_more(use, compiled):
    compiler = Compiler(compiled, seconds=30)

    def interrupt(index, outcome):
        raise KeyboardInterrupt

    def first_is_done(config, *arguments, **options):
        if config.per_device_batch_size == 1:
            while compiler.started < 1:  # until the other one runs
                time.sleep(0.01)
            return compiled(config, "v5e-4", quick=True)
        return compiler(config, *arguments, **options)

    use(first_is_done)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compile_all(CONFIGS, "v5e-4", finished=interrupt)
    assert time.monotonic() - begun < 10
    assert (compiler.started, compiler.ended) == (1, 1)


def test_a_quick_compile_waits_for_a_program_that_is_still_being_written(tmp_path):
    # Seen where two compile on a busy machine.
    for name, data in (("hlo.pb", b"\x0a\xff\xff\x01half"), ("-memory-usage-report.pb", b"")):
        (tmp_path / f"module_0003.jit_train_step.after_optimizations{'.' * (name[0] != '-')}{name}").write_bytes(data)
    dump = Dump(tmp_path)
    assert dump.has_memory
    assert not _fits(dump, tmp_path / "result.json")


def test_the_free_memory_of_this_machine_is_known_where_the_system_tells():
    found = pool.available_bytes()
    assert found is None or found > 1 << 20


# --- the real compiler -----------------------------------------------------------------------------------------------

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None and not os.environ.get("CI"),
    reason="no TPU compiler: libtpu is missing",
)


@needs_libtpu
@pytest.mark.slow
def test_an_interrupt_leaves_no_process_and_no_files(tmp_path):
    overrides = ["dtype=bfloat16", "max_target_length=256", "per_device_batch_size=1"]
    config, processes = load("tiny-qwen3-opt", overrides).config, set()
    seen = threading.Event()

    def watch(index, phase, elapsed_s, memory_bytes):
        processes.update(children())
        if phase in ("trace", "lower", "compile"):
            seen.set()

    def interrupt():
        seen.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        compile_all([config], "v5e-4", cache=Cache(tmp_path), progress=watch)
    assert processes
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
    assert list(tmp_path.iterdir()) == []


def children():
    """Processes of this one that compile."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"distill.aot.worker" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return found
