#!/usr/bin/env python3
"""Compile every kernel source for AMD cards with clang; no card and nothing of ROCm is needed.

usage: hip_check.py --kernels DIR --arch gfx906,gfx1100 [--compiler clang++-19] [--verbose]

Each `DIR/*.cu` becomes a code object, in which every kernel that the host build of the source lists must be, with floats
rounded to nearest even, denormals kept, no spilled register (but for kernels that are listed below), at most 704 bytes of
scratch memory a lane and 64 KiB of static shared memory. Then small probes show that the names of device/hip.h become
the instructions that they are meant to be, behind the names that hiprtc puts before every source. One line an
architecture and source. A failure ends with exit status 1; 2 is a usage error. Python 3.9 alone.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "kernels/emu"))
from list_kernels import KERNEL  # noqa: E402

OPTIONS = ["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc", "-O3", "-std=c++17",
           "-ffp-contract=off", "-fhip-fp32-correctly-rounded-divide-sqrt", "-Wall", "-Werror", "-ferror-limit=3",
           "-Wno-pass-failed"]  # a loop that was not unrolled is no fault
# The host build's text, where kernels still have their names and bounds.
LISTING = ["-E", "-P", "-x", "c++", "-std=c++17", "-march=x86-64-v3", "-DTANDEM_EMU=1", "-DTANDEM_EMU_LISTING=1"]
SHARED_MAX = 64 * 1024
# Bytes of scratch memory a lane: small arrays whose places are known at run time alone.
SCRATCH_MAX = 704
# What tensor cores do elsewhere are exchanges between lanes here: right, but slow, and more than the registers hold. Products
# by lanes are unrolled for NVIDIA's registers and for its launch bounds.
SPILLS = re.compile("window_(one|two|four|wide)_|attend_prompt_")
# Kernels of many arguments: gfx906's scalar registers spill into lanes of vector registers, not into memory.
SCALAR_SPILLS = re.compile("place_heads_|attend_(tile|128)_")
REMARK = re.compile(r"remark: +([A-Z][^:\[]*?)(?: \[[a-zA-Z/]+\])?: (\S+) \[-Rpass-analysis=kernel-resource-usage\]")

# What a body over `u32 a, u32 b, i32 c, f32 x, f32 y, f32 z` becomes: instructions of which one is there, and those that
# are not.
DOT = {"gfx906": r"v_dot4_i32_i8", "gfx1030": r"v_dot4c?_i32_i8", "gfx1100": r"v_dot4_i32_iu8"}
PROBES = [
    ("dp4a", "i32", "dp4a(a, b, c)", DOT, r"v_mul|v_mad"),
    ("fma", "f32", "fmaf(x, y, z)", r"v_fma(c|ak|mk)?_f32", r"v_mul|v_add"),
    ("product and sum", "f32", "x * y + z", r"v_mul_f32", r"v_fma|v_mad|v_mac"),
    ("from f16", "f32", "f16_f32((u16) a)", r"v_cvt_f32_f16", r"s_swappc"),
    ("to f16", "u32", "f32_f16(x)", r"v_cvt_f16_f32", r"v_cvt_pkrtz|s_swappc"),
    ("to an integer", "i32", "f32_i32_even(x)", r"v_rndne_f32", r"s_swappc"),
    ("bytes", "u32", "byte_permute(a, b, 0x7531u)", r"v_perm_b32", r"v_or|v_and|v_bfi"),
    ("shuffle", "u32", "shuffle_xor(a, 16)", r"ds_bpermute_b32", r"s_barrier"),
    ("root", "f32", "sqrtf(x)", r"v_sqrt_f32", r"s_swappc"),
    ("quotient", "f32", "x / y", r"v_div_fixup_f32", r"s_setreg"),
]

# What hiprtc puts before a source, as far as device/hip.h has the same names: macros, types and functions of HIP's headers.
HIPRTC = """#define __HIPCC_RTC__ 1
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((amdgpu_flat_work_group_size(1, 1024)))
struct Coordinates { unsigned x, y, z; };
extern const __device__ __attribute__((weak)) Coordinates threadIdx, blockIdx, blockDim, gridDim;
extern const __device__ __attribute__((weak)) int warpSize;
__device__ inline __attribute__((convergent)) void __syncthreads() { __builtin_amdgcn_s_barrier(); }
static __device__ inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static __device__ inline float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
static __device__ inline float sqrtf(float x) { return __builtin_sqrtf(x); }
"""


class Object:
    """A code object: the descriptors of its kernels, by name."""

    def __init__(self, data):
        if data[:4] != b"\x7fELF" or struct.unpack_from("<H", data, 18)[0] != 224:
            raise ValueError("no code object of an AMD card")
        at, = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        # type, address, offset, bytes, link, entry bytes
        sections = [struct.unpack_from("<4xI8xQQQI12xQ", data, at + i * size) for i in range(count)]
        self.kernels = {}
        for kind, _, offset, length, link, entry in sections:
            if kind != 2:  # SHT_SYMTAB
                continue
            names = sections[link][2]
            for symbol in range(offset, offset + length, entry):
                name, section, value = struct.unpack_from("<I2xHQ", data, symbol)
                name = data[names + name:data.index(b"\0", names + name)].decode()
                if name.endswith(".kd"):
                    place = value - sections[section][1] + sections[section][2]
                    self.kernels[name[:-3]] = data[place:place + 64]

    def shared_bytes(self, name):
        return struct.unpack_from("<I", self.kernels[name], 0)[0]

    def wave(self, name):
        return 32 if struct.unpack_from("<H", self.kernels[name], 56)[0] >> 10 & 1 else 64

    def float_mode(self, name):
        """(rounding of f32, of f16 and f64, denormals of f32, of f16 and f64): 0 is nearest even, 3 keeps all."""
        word, = struct.unpack_from("<I", self.kernels[name], 48)
        return tuple(word >> shift & 3 for shift in (12, 14, 16, 18))


def resources(log):
    """What the compiler reports of each kernel: {kernel: {name: number}}."""
    found, kernel = {}, None
    for name, value in REMARK.findall(log):
        if name == "Function Name":
            kernel = found.setdefault(value, {})
        elif value.isdigit():
            kernel[name] = int(value)
    return found


def largest(used, name):
    return max((of[name] for of in used.values()), default=0)


class Check:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)

    def run(self, arguments):
        return subprocess.run([self.options.compiler, f"-I{self.options.kernels}", *arguments], capture_output=True,
                              text=True)

    def listed(self, source):
        listing = self.run([*LISTING, str(source)])
        names = [name for _, name in KERNEL.findall(listing.stdout)]
        if listing.returncode != 0 or not names:
            sys.exit(f"hip_check: {source}: no kernel is listed\n{listing.stderr}")
        return names

    def source(self, source, names, arch):
        """A line of figures and what is wrong."""
        target, start = self.folder / f"{source.stem}-{arch}.hsaco", time.monotonic()
        built = self.run([*OPTIONS, f"--offload-arch={arch}", "-Rpass-analysis=kernel-resource-usage", "-o", str(target),
                          str(source)])
        took = time.monotonic() - start
        if built.returncode != 0:
            return f"{took:.1f} s", [re.sub(r"^.*remark: .*\n(^ .*\n)*", "", built.stderr, flags=re.M)]
        code, used = Object(target.read_bytes()), resources(built.stderr)
        if self.options.verbose:
            print(built.stderr)
        wrong = [f"{name} is missing" for name in names if name not in code.kernels or name not in used]
        present = [name for name in names if name in code.kernels and name in used]
        for name in present:
            of = used[name]
            spills = of["VGPRs Spill"] + (0 if SCALAR_SPILLS.match(name) else of["SGPRs Spill"])
            if (spills and not SPILLS.match(name)) or of["ScratchSize"] > SCRATCH_MAX:
                wrong.append(f"{name}: {spills} spills, {of['ScratchSize']} bytes of scratch a lane")
            if code.shared_bytes(name) > SHARED_MAX:
                wrong.append(f"{name}: {code.shared_bytes(name)} bytes of shared memory")
            if code.float_mode(name) != (0, 0, 3, 3):
                wrong.append(f"{name}: float mode {code.float_mode(name)}")
        waves = sorted({code.wave(name) for name in present})
        return (f"{took:.1f} s, {len(present)} kernels, waves of {'/'.join(map(str, waves))}, "
                f"{largest(used, 'VGPRs')} registers, {largest(used, 'LDS Size')} bytes shared, "
                f"{largest(used, 'ScratchSize')} bytes scratch"), wrong

    def probes(self, arch):
        """How many there are, and what is wrong with the instructions that they become."""
        wrong = []
        before = self.folder / "hiprtc.h"
        before.write_text(HIPRTC)
        for name, kind, value, there, absent in PROBES:
            there = there.get(arch) if isinstance(there, dict) else there
            if there is None:
                sys.exit(f"hip_check: no instruction of {arch} is listed for {name}")
            path = self.folder / f"probe-{arch}.cu"
            path.write_text('#include "device/vendor.h"\nextern "C" __global__ void __launch_bounds__(64)\n'
                            "probe(const u32* in, const f32* x_in, u32* out) {\n"
                            "    const u32 t = threadIdx.x, a = in[t], b = in[t + 64];\n"
                            "    const i32 c = (i32) in[t + 128];\n"
                            "    const f32 x = x_in[t], y = x_in[t + 64], z = x_in[t + 128];\n"
                            f"    (({kind}*) out)[t] = {value};\n}}\n")
            quiet = ["-Wno-unused-variable", "-Wno-unused-function", "-include", str(before), "-S", "-o", "-"]
            built = self.run([*OPTIONS, *quiet, f"--offload-arch={arch}", str(path)])
            if built.returncode != 0:
                wrong.append(built.stderr)
            elif not re.search(there, built.stdout):
                wrong.append(f"{name}: no {there}")
            elif re.search(absent, built.stdout):
                wrong.append(f"{name}: {re.search(absent, built.stdout).group(0)}")
        return f"{len(PROBES)} of device/hip.h", wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=pathlib.Path, required=True)
    parser.add_argument("--arch", required=True, help="names of AMD's architectures, by commas")
    parser.add_argument("--compiler", default="clang++-19")
    parser.add_argument("--verbose", action="store_true", help="print what the compiler reports")
    options = parser.parse_args()

    sources = sorted(options.kernels.glob("*.cu"))
    if not sources:
        sys.exit(f"hip_check: no .cu file in {options.kernels}")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        check = Check(options, folder)
        names = {source: check.listed(source) for source in sources}
        jobs = []
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            for arch in options.arch.split(","):
                for source in sources:
                    job = workers.submit(check.source, source, names[source], arch)
                    jobs.append((f"{arch} {source.name}", job))
                jobs.append((f"{arch} probes", workers.submit(check.probes, arch)))
            for what, job in jobs:
                figures, wrong = job.result()
                print(f"{what}: {figures}" + (", FAILED" if wrong else ""), flush=True)
                print("".join(f"  {line}\n" for line in wrong), end="")
                failures += bool(wrong)
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
