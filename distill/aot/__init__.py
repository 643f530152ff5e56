"""Compiling a training step for a TPU that is not there, and what the compiler says about it.

libtpu holds the whole TPU compiler and needs no TPU to run it. ``compile_step`` lowers the step that training runs for
a named topology, compiles it in a process of its own and reads what the compiler leaves behind: whether it fits, what
fills the memory, how often each kernel runs, and the schedule::

    from distill.aot import compile_step
    from distill.config import load

    compiled = compile_step(load("qwen3-30b-opt").config, "tpu7x-4x4x4", quick=True)
    print(compiled.fits, compiled.memory.peak_bytes)

docs/distill/compile.md says where each number comes from.
"""

from distill.aot.cache import Cache
from distill.aot.compiler import Compiled, compile_step
from distill.aot.errors import OutOfMemory, OutOfVmem
from distill.aot.topology import Topology, find, topologies

__all__ = ["Cache", "Compiled", "OutOfMemory", "OutOfVmem", "Topology", "compile_step", "find", "topologies"]
