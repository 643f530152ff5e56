"""Warnings by what they mean for the reader: something is lost, something is assumed, or it is just worth knowing."""

from __future__ import annotations

from collections.abc import Iterable

from profiler.results import Note
from profiler.results_health import Problem

LOST, ASSUMED, KNOW = "lost", "assumed", "worth knowing"
GROUPS = (LOST, ASSUMED, KNOW)

_AGAIN = "copy the original again in binary mode; if it is cut there too, record again and let the profiler stop itself"
_FEWER = "record fewer steps, so that the recorder's buffers hold all of them"
_MARK = "wrap each step in jax.profiler.StepTraceAnnotation, and record several"
_SKIP = "--skip-first N or --steps A:B leaves such steps out"
_HLO = "record with the HLO programs, as jax.profiler.trace does unless told otherwise"
_PEAK = "--peak-tflops sets the peak"
_WORK = "--model-tflops or --tokens-per-step says how much work a step is"
_MORE = "record three steps or more on either side"
_SAME = "run both sides with the same software to tell its effect apart"
_COMPILE = "compile both sides in the same way"

# Every code that a Note may have: its group, and what helps. None: nothing does, or nothing needs to.
CODES: dict[str, tuple[str, str | None]] = {
    # the search for recordings
    "runs_stopped": (LOST, "name a smaller folder"),
    "runs_unreadable": (LOST, "make the folders readable"),
    "runs_deep": (LOST, "name a folder further down"),
    "runs_linked": (LOST, "name the file that the link leads to"),
    "runs_nameless": (LOST, "rename the files"),
    "copies": (KNOW, None),
    "start_by_file": (ASSUMED, "keep runs in folders that are named by their time: 2026_12_31_23_59_59"),
    "figure_unknown": (LOST, "record with the run info: it says how much work a step is"),
    # the file
    "truncated": (LOST, _AGAIN),
    "gzip_damaged": (LOST, "pack or copy the file again from the original"),
    "damaged": (LOST, _AGAIN),
    "damaged_events": (LOST, _AGAIN),
    "recorder_error": (LOST, _FEWER),
    "recorder_warning": (LOST, _FEWER),
    "hlo_unreadable": (LOST, _HLO),
    "run_info_unreadable": (LOST, "--config gives the run's configuration"),
    "python_scanner": (KNOW, "install where a C compiler is at hand: the figures are the same, reading is faster"),
    "file_twice": (KNOW, "name each file once"),
    "files_of_different_runs": (KNOW, "give one run's files, or compare the two with profiler diff"),
    # hosts
    "hosts_unreadable": (LOST, "copy these files again, or leave them out"),
    "hosts_without_ops": (LOST, "record on these hosts while steps run"),
    "hosts_missing": (LOST, "give the folder that has the files of all hosts"),
    # devices and steps
    "devices_without_ops": (LOST, "record on the hosts of those devices too, if they took part"),
    "devices_without_steps": (LOST, "--device names the devices to look at"),
    "steps_out_of_step": (KNOW, "start and stop the recorder on all hosts at the same step"),
    "skew_noise_unknown": (LOST, "record three steps or more"),
    "no_waits_seen": (KNOW, None),
    "mixed_devices": (LOST, "--device keeps one kind, --peak-tflops sets one peak"),
    "no_steps": (LOST, _MARK),
    "steps_dropped": (KNOW, "record some steps more than you need: the first and the last may be cut"),
    "few_steps": (LOST, _MORE),
    "slow_first_step": (KNOW, "--skip-first 1 leaves it out"),
    "uneven_steps": (KNOW, _SKIP),
    # ops and programs
    "no_hlo_ops": (LOST, _HLO),
    "no_hlo_proto": (LOST, _HLO),
    "kernels_without_hlo": (LOST, "profile with XLA_FLAGS=--xla_gpu_enable_command_buffer="),
    "no_name_stacks": (LOST, _HLO),
    "no_programs": (LOST, _HLO),
    "no_kernels": (KNOW, None),
    "kernel_flops_unknown": (LOST, "give the kernel a cost estimate (pallas_call's cost_estimate)"),
    "no_reruns": (KNOW, None),
    "no_tensors": (KNOW, "name tensors with jax.ad_checkpoint.checkpoint_name"),
    "tensors_not_seen": (KNOW, None),
    # memory
    "no_buffer_assignment": (LOST, "record with the HLO programs and their buffer assignment"),
    "no_heap_trace": (LOST, None),
    "no_allocator_events": (LOST, "record the host too: allocator events stand on its plane"),
    # facts and figures
    "fact_unusable": (LOST, "write the key as a positive number"),
    "flops_per_run": (ASSUMED, _MARK),
    "work_per_step": (ASSUMED, "leave --normalize run out where the recording has steps"),
    "peak_differs": (ASSUMED, _PEAK),
    "causal_assumed": (ASSUMED, None),
    "include_not_read": (ASSUMED, "give the configuration with what it includes written out"),
    "mfu_impossible": (KNOW, "check the model FLOPs, that they are per device and step, and the peak"),
    "above_peak": (KNOW, _PEAK),
    "no_roof": (LOST, "--peak-tflops and --hbm-gb-per-s give the roof of an unknown chip"),
    "above_roof": (KNOW, None),
    "roof_of_estimates": (ASSUMED, "record the run for measured times"),
    "faster_than_links": (KNOW, None),
    # two sides
    "estimates": (ASSUMED, "record both sides for measured times"),
    "estimates_differ": (ASSUMED, _COMPILE),
    "effect_not_estimated": (ASSUMED, "record both sides to see it"),
    "kind_differs": (KNOW, "compare recorded with recorded, or compiled with compiled"),
    "device_differs": (KNOW, "compare runs on the same chip"),
    "devices_differ": (ASSUMED, "--device names one device on either side"),
    "unit_differs": (KNOW, "--normalize run compares whole recordings"),
    "convention_differs": (ASSUMED, "--model-tflops gives both counts by one convention"),
    "mfu_not_split": (ASSUMED, "leave --normalize out to split the MFU"),
    "mostly_idle": (ASSUMED, _MARK),
    "noise_unknown": (LOST, _MORE),
    "program_differs": (KNOW, "make sure that both sides ran the same job"),
    "shapes_differ": (KNOW, _WORK),
    "versions_differ": (KNOW, _SAME),
    "model_differs": (KNOW, "compare runs of the same model"),
    "rerun_names_moved": (KNOW, None),
    "straggler": (KNOW, "profiler hosts says who the others wait for; record again without it"),
    "loss_differs": (KNOW, "find out why before trusting the speed: it may be another computation"),
    "more": (KNOW, "--format json has all warnings"),
}  # fmt: skip


def problems(notes: Iterable[Note]) -> tuple[Problem, ...]:
    """The notes with their groups and remedies: lost first, then assumed; of a group in the order given, each once."""
    found = [
        Problem(group, note.code, note.message, remedy)
        for note in dict.fromkeys(notes)
        for group, remedy in [CODES.get(note.code, (KNOW, None))]
    ]
    return tuple(sorted(found, key=lambda each: GROUPS.index(each.group)))
