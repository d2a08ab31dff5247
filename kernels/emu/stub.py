"""A CUDA driver from Python: cards, memory, launches. The stub's, or with kernels compiled before a real card's.

Invariants: every status is checked; arguments are packed as the driver wants them, an address for each. What a kernel's
arguments are is said by the caller: `Buffer` (or None) a pointer, `float` an f32, `int` an i32, `Wide` an i64.
Python 3.9 and numpy.
"""
import ctypes
import pathlib

import numpy as np

KERNELS = pathlib.Path(__file__).resolve().parent.parent
OPTIONS = [b"--gpu-architecture=sm_90", b"--fmad=false", b"--std=c++17"]


class DriverError(Exception):
    def __init__(self, call, status):
        super().__init__(f"{call} returned {status}")
        self.status = status


# CUfunction_attribute.
MAX_DYNAMIC_SHARED_BYTES = 8


class Wide(int):
    """An argument of eight bytes."""


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_char * 4), ("value", ctypes.c_int * 16)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint),
    ]


class Driver:
    """The library, started: the stub in a folder, or the computer's own where `cubins` are given."""

    def __init__(self, folder, cubins=None):
        self.cubins = cubins
        stub = "libcuda.so.1" if cubins else str(pathlib.Path(folder) / "libcuda.so.1")
        self.library = ctypes.CDLL(stub, mode=ctypes.RTLD_GLOBAL)
        if not cubins:
            self.compiler = ctypes.CDLL(str(pathlib.Path(folder) / "libnvrtc.so.12"))
        self.call("cuInit", 0)

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise DriverError(name, status)

    def status(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def set_order(self, falling):
        self.library.tandem_emu_set_order(int(falling))

    def set_late(self, late):
        self.library.tandem_emu_set_late(int(late))

    def set_threads(self, threads):
        self.library.tandem_emu_set_threads(threads)

    def images(self, source):
        """All kernels: the stub's compiler gives them with any source."""
        return [p.read_bytes() for p in sorted(self.cubins.glob("*.cubin"))] if self.cubins else [self.image(source)]

    def image(self, source):
        """What the stub compiler makes of a kernel source with all headers."""
        files = [p for p in sorted(KERNELS.rglob("*")) if p.suffix in (".h", ".cuh") and "emu" not in p.parts]
        names = [p.relative_to(KERNELS).as_posix().encode() for p in files]
        texts = [p.read_bytes() for p in files]
        nvrtc, program, size = self.compiler, ctypes.c_void_p(), ctypes.c_size_t()
        array = lambda values: (ctypes.c_char_p * len(values))(*values)
        text = (KERNELS / source).read_bytes()
        assert 0 == nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), text, source.encode(), len(files), array(texts), array(names)
        )
        failed = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), array(OPTIONS))
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        assert not failed, log.value.decode()
        assert 0 == nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        assert 0 == nvrtc.nvrtcGetCUBIN(program, image)
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return image


class Buffer:
    """Memory of a card with a numpy type and shape; `at` is the same memory from a later element on."""

    def __init__(self, card, address, shape, dtype):
        self.card, self.address, self.shape, self.dtype = card, address, shape, np.dtype(dtype)

    def at(self, element):
        return Buffer(self.card, self.address + element * self.dtype.itemsize, (), self.dtype)

    def read(self):
        out = np.empty(self.shape, self.dtype)
        self.card.use()
        self.card.driver.call("cuStreamSynchronize", self.card.stream)
        self.card.driver.call(
            "cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(self.address),
            ctypes.c_size_t(out.nbytes)
        )
        return out


class Card:
    """One card: its context, a stream, a module, and the buffers made so far."""

    def __init__(self, driver, number, source="rows.cu"):
        self.driver, self.number, self.buffers = driver, number, []
        self.context, self.stream, self.modules = ctypes.c_void_p(), ctypes.c_void_p(), []
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), number)
        self.use()
        driver.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        for image in driver.images(source):
            module = ctypes.c_void_p()
            driver.call("cuModuleLoadData", ctypes.byref(module), image)
            self.modules.append(module)

    def use(self):
        self.driver.call("cuCtxSetCurrent", self.context)

    def alloc(self, shape, dtype):
        self.use()
        address = ctypes.c_uint64()
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.buffers.append(address.value)
        return Buffer(self, address.value, shape, dtype)

    def upload(self, values, dtype=None):
        values = np.ascontiguousarray(values, dtype)
        buffer = self.alloc(values.shape, values.dtype)
        self.driver.call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(buffer.address), values.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(values.nbytes), self.stream
        )
        return buffer

    def function(self, name):
        self.use()
        function = ctypes.c_void_p()
        for module in self.modules:
            status = self.driver.status("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            if status == 0:
                return function
        raise DriverError(f"cuModuleGetFunction {name}", status)

    def launch(self, name, grid, block, *arguments, shared=0):
        """`shared`: bytes of dynamic shared memory."""
        addresses, function = self.packed(arguments), self.function(name)
        if shared > 0:
            self.driver.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_BYTES, shared)
        self.driver.call("cuLaunchKernel", function, *grid, *block, shared, self.stream, addresses, None)

    def launch_early(self, name, grid, block, *arguments):
        """The launch may begin before the kernel before has ended; the kernel waits by itself."""
        addresses, config = self.packed(arguments), Config()
        attribute = Attribute(id=6, value=(ctypes.c_int * 16)(1))
        config.grid, config.block = grid, block
        config.stream, config.attributes, config.count = self.stream, ctypes.pointer(attribute), 1
        self.driver.call("cuLaunchKernelEx", ctypes.byref(config), self.function(name), addresses, None)

    def packed(self, arguments):
        packed = []
        for a in arguments:
            if a is None or isinstance(a, Buffer):
                packed.append(ctypes.c_uint64(a.address if a else 0))
            elif isinstance(a, float):
                packed.append(ctypes.c_float(a))
            else:
                packed.append((ctypes.c_int64 if isinstance(a, Wide) else ctypes.c_int32)(a))
        addresses = (ctypes.c_void_p * len(packed))(*(ctypes.addressof(p) for p in packed))
        addresses.values = packed  # as long as the addresses
        return addresses

    def free_all(self):
        self.use()
        for address in self.buffers:
            self.driver.call("cuMemFree_v2", ctypes.c_uint64(address))
        self.buffers = []
