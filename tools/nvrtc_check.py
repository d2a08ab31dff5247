#!/usr/bin/env python3
"""Compile every kernel source for every architecture with a given NVRTC; no card is needed.

usage: nvrtc_check.py --kernels DIR --arch 75,80,90 [--verbose] [--out FOLDER] LIBNVRTC...

Each `DIR/*.cu` is compiled to a cubin with the options of the engine (src/device/cuda/source.rs), all `.h` and `.cuh`
files of DIR given by their names below DIR, as the engine gives them. One line a library, source and architecture:
time, bytes, largest register count, largest shared memory of a kernel. An error, a warning or a spilled register ends
with exit status 1; 2 is a usage error. --out keeps the cubins of one library and architecture: FOLDER/NAME.cubin.
Python 3.9 alone.
"""
import argparse
import concurrent.futures
import ctypes
import pathlib
import re
import sys
import time

OPTIONS = ["--fmad=false", "--std=c++17", "--device-as-default-execution-space", "-Xptxas=-v"]
KERNEL = "Compiling entry function"
REGISTERS = r"Used (\d+) registers"
SHARED = r"(\d+) bytes smem"


class Nvrtc:
    """The functions of one NVRTC library; a status that is not 0 raises."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {self.library.nvrtcGetErrorString(status).decode()}")

    def compile(self, name, source, headers, options):
        """The cubin and the log; None where the source does not compile."""
        texts = (ctypes.c_char_p * len(headers))(*headers.values())
        names = (ctypes.c_char_p * len(headers))(*(n.encode() for n in headers))
        flags = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), len(headers), texts, names)
        failed = self.library.nvrtcCompileProgram(program, len(options), flags)
        size = ctypes.c_size_t()
        self.call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.call("nvrtcGetProgramLog", program, log)
        cubin = None
        if not failed:
            self.call("nvrtcGetCUBINSize", program, ctypes.byref(size))
            cubin = ctypes.create_string_buffer(size.value)
            self.call("nvrtcGetCUBIN", program, cubin)
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return (cubin.raw if cubin else None), log.value.decode()


def complaints(log):
    """What the log has besides figures, and kernels that spill."""
    found, kernel = [], "?"
    for line in log.splitlines():
        entry = re.search(r"Compiling entry function '(\w+)'|Function properties for (\w+)", line)
        kernel = (entry.group(1) or entry.group(2)) if entry else kernel
        spill = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if spill and any(int(n) for n in spill.groups()[1:]):
            found.append(f"{kernel} spills: {line.strip()}")
        if re.search(r"\b(error|warning)\b", line):
            found.append(line.strip())
    return found


def largest(pattern, log):
    return max((int(n) for n in re.findall(pattern, log)), default=0)


def compiled(library, name, source, headers, arch):
    """In a process of its own: the compiler takes one program at a time. (source, what was compiled, cubin, log)."""
    nvrtc = Nvrtc(library)
    start = time.monotonic()
    cubin, log = nvrtc.compile(name, source, headers, [f"--gpu-architecture=sm_{arch}", *OPTIONS])
    took = (time.monotonic() - start) * 1e3
    return name, f"nvrtc {nvrtc.version} {name} sm_{arch}: {took:.0f} ms", cubin, log


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=pathlib.Path, required=True)
    parser.add_argument("--arch", required=True, help="compute capabilities without the point, by commas")
    parser.add_argument("--verbose", action="store_true", help="print the whole log")
    parser.add_argument("--out", type=pathlib.Path, help="keep the cubins here; one library, one architecture")
    parser.add_argument("libraries", nargs="+")
    options = parser.parse_args()
    if options.out:
        if len(options.libraries) > 1 or "," in options.arch:
            parser.error("--out takes one library and one architecture")
        options.out.mkdir(parents=True, exist_ok=True)

    sources = sorted(options.kernels.glob("*.cu"))
    if not sources:
        sys.exit(f"nvrtc_check: no .cu file in {options.kernels}")
    files = [p for p in sorted(options.kernels.rglob("*")) if p.suffix in (".h", ".cuh")]
    headers = {p.relative_to(options.kernels).as_posix(): p.read_bytes() for p in files}
    headers = {name: text for name, text in headers.items() if not name.startswith("emu/")}
    # The longest first, so that no processor waits for the last.
    sources.sort(key=lambda source: -source.stat().st_size)
    jobs = [(l, s.name, s.read_bytes(), headers, a) for l in options.libraries for s in sources for a in options.arch.split(",")]
    failures = 0
    with concurrent.futures.ProcessPoolExecutor() as processes:
        for source, name, cubin, log in processes.map(compiled, *zip(*jobs)):
            wrong = complaints(log)
            registers, shared = largest(REGISTERS, log), largest(SHARED, log)
            print(
                f"{name}, {len(cubin or b'')} bytes, {log.count(KERNEL)} kernels, {registers} registers, {shared} bytes shared"
                + (", FAILED" if wrong or cubin is None else ""),
                flush=True,
            )
            if wrong or cubin is None or options.verbose:
                print("\n".join(wrong) if wrong and not options.verbose else log)
            if options.out and cubin:
                (options.out / source).with_suffix(".cubin").write_bytes(cubin)
            failures += bool(wrong) or cubin is None
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
