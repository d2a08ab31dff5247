#!/usr/bin/env python3
"""The stub driver itself: what it must refuse, count and fail on demand.

usage: driver_check.py [--libraries target/emu] [--reads target/emu-reads]

Each check is a function; those that must end the process run in a process of their own. One line a check; exit status 1
if any fails. Python 3.9 and numpy.
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys

import numpy as np

from stub import KERNELS, Attribute, Buffer, Card, Config, Driver, DriverError, Wide

OUT_OF_MEMORY, INVALID_VALUE, INVALID_IMAGE, INVALID_HANDLE = 2, 1, 200, 400
NOT_FOUND, ILLEGAL_ADDRESS, LAUNCH_FAILED, NOT_SUPPORTED = 500, 700, 719, 801
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURED_EVENT = 900, 901, 905, 907
THREAD_LOCAL = 1
NEVER = ctypes.c_uint64(2**64 - 1)
F = np.float32


def refused(status, action, *arguments):
    try:
        action(*arguments)
    except DriverError as e:
        assert e.status == status, f"status {e.status} instead of {status}"
        return
    raise AssertionError(f"nothing was refused; expected {status}")


def add(card, x, y, width=4, n=1, grid=(1, 1, 1), block=(256, 1, 1)):
    card.launch("add", grid, block, x, width, y, width, width, n)


def ones(card, count=4):
    return card.upload(np.ones(count, F))


def used(driver, card):
    driver.library.tandem_emu_used_bytes.restype = ctypes.c_uint64
    return driver.library.tandem_emu_used_bytes(card.number)


# ---- refused, the process goes on ------------------------------------------------------------------------------------


def a_kernel_of_an_unknown_name_is_not_found(driver, cards):
    refused(NOT_FOUND, cards[0].function, "no_such_kernel")


def an_image_of_somebody_else_is_refused(driver, cards):
    module = ctypes.c_void_p()
    cards[0].use()
    refused(INVALID_IMAGE, driver.call, "cuModuleLoadData", ctypes.byref(module), b"\x7fELF-and-more")


def a_pointer_into_another_card_ends_the_context_until_peers_may_reach(driver, cards):
    x, y = ones(cards[0]), ones(cards[1])
    refused(ILLEGAL_ADDRESS, add, cards[0], x, y)
    refused(ILLEGAL_ADDRESS, add, cards[0], x, x)  # an ended context does nothing more
    driver.library.tandem_emu_heal(0)
    cards[0].use()
    driver.call("cuCtxEnablePeerAccess", cards[1].context, 0)
    add(cards[0], x, y)
    assert (x.read() == 2).all()
    driver.call("cuCtxDisablePeerAccess", cards[1].context)


def copies_stay_on_their_card_and_inside_allocations(driver, cards):
    x, y = ones(cards[0]), ones(cards[1])
    size, address = ctypes.c_size_t, ctypes.c_uint64
    cards[0].use()
    refused(INVALID_VALUE, driver.call, "cuMemcpyDtoD_v2", address(x.address), address(y.address), size(16))
    refused(INVALID_VALUE, driver.call, "cuMemsetD8_v2", address(x.address), 0, size(17))
    refused(INVALID_VALUE, driver.call, "cuMemcpyHtoD_v2", address(y.address), bytes(16), size(16))
    swapped = (address(x.address), cards[1].context, address(y.address), cards[0].context, size(16))
    refused(INVALID_VALUE, driver.call, "cuMemcpyPeer", *swapped)
    y = cards[1].upload(np.full(4, 5, F))
    cards[0].use()
    driver.call("cuMemcpyPeer", address(x.address), cards[0].context, address(y.address), cards[1].context, size(16))
    assert (x.read() == 5).all()


def freed_memory_is_no_argument(driver, cards):
    x, y = ones(cards[0]), ones(cards[0])
    cards[0].free_all()
    refused(ILLEGAL_ADDRESS, add, cards[0], x, y)
    driver.library.tandem_emu_heal(0)
    refused(INVALID_VALUE, driver.call, "cuMemFree_v2", ctypes.c_uint64(x.address))


def a_block_larger_than_the_kernel_was_built_for_is_refused(driver, cards):
    x, y = ones(cards[0]), ones(cards[0])
    refused(INVALID_VALUE, lambda: add(cards[0], x, y, block=(512, 1, 1)))
    refused(INVALID_VALUE, lambda: add(cards[0], x, y, grid=(1, 65536, 1)))


def a_stream_of_another_card_is_refused(driver, cards):
    x, stream = ones(cards[0]), cards[0].stream
    cards[0].stream = cards[1].stream
    try:
        refused(INVALID_HANDLE, lambda: add(cards[0], x, x))
    finally:
        cards[0].stream = stream


def memory_ends_where_the_card_ends(driver, cards):
    before = used(driver, cards[0])
    driver.library.tandem_emu_set_memory(0, ctypes.c_uint64(before + 1000))
    refused(OUT_OF_MEMORY, cards[0].alloc, (1001,), np.uint8)
    x = cards[0].alloc((1000,), np.uint8)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert (free.value, total.value) == (0, before + 1000)
    cards[0].free_all()
    driver.library.tandem_emu_set_memory(0, ctypes.c_uint64(1 << 30))
    assert used(driver, cards[0]) == 0, x


def new_memory_holds_no_numbers(driver, cards):
    assert np.isnan(cards[0].alloc((100,), F).read()).all()


# ---- on demand -------------------------------------------------------------------------------------------------------


def allocations_fail_after_so_many_bytes(driver, cards):
    driver.library.tandem_emu_fail_allocation_after(ctypes.c_uint64(100))
    cards[0].alloc((60,), np.uint8)
    refused(OUT_OF_MEMORY, cards[0].alloc, (41,), np.uint8)
    cards[0].alloc((40,), np.uint8)
    driver.library.tandem_emu_fail_allocation_after(NEVER)
    cards[0].alloc((4000,), np.uint8)


def a_launch_fails_after_so_many(driver, cards):
    x, y = ones(cards[0]), ones(cards[0])
    driver.library.tandem_emu_fail_launch_after(ctypes.c_uint64(2), LAUNCH_FAILED)
    add(cards[0], x, y)
    add(cards[0], x, y)
    refused(LAUNCH_FAILED, add, cards[0], x, y)
    refused(LAUNCH_FAILED, cards[0].alloc, (1,), np.uint8)
    driver.library.tandem_emu_heal(0)
    add(cards[0], x, y)
    assert (x.read() == 4).all()


def the_compiler_asks_for_every_header_and_for_no_contraction(driver, cards):
    def compiled(options, header):
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * 1)(header)
        texts = (ctypes.c_char_p * 1)(b"\n")
        source = b'#include "device/vendor.h"\n'
        driver.compiler.nvrtcCreateProgram(ctypes.byref(program), source, b"x.cu", 1, texts, names)
        given = (ctypes.c_char_p * len(options))(*options)
        return driver.compiler.nvrtcCompileProgram(program, len(options), given)

    arch, exact = b"--gpu-architecture=sm_90", b"--fmad=false"
    assert compiled([arch, exact], b"device/vendor.h") == 0
    assert compiled([arch, exact], b"vendor.h") == 6
    assert compiled([arch], b"device/vendor.h") == 6
    assert compiled([exact], b"device/vendor.h") == 6


# ---- order of work ---------------------------------------------------------------------------------------------------


def late_work_shows_a_missing_wait(driver, cards):
    card = cards[0]
    x, y, z = ones(card), ones(card), ones(card)
    other, event = ctypes.c_void_p(), ctypes.c_void_p()
    driver.set_late(True)
    driver.call("cuStreamCreate", ctypes.byref(other), 1)
    driver.call("cuEventCreate", ctypes.byref(event), 2)
    own = card.stream
    try:
        add(card, x, z)  # x = 2, on the card's stream
        driver.call("cuEventRecord", event, own)
        card.stream = other
        add(card, y, x)  # without a wait: y = 1 + the old x
        assert (y.read() == 2).all()
        driver.call("cuStreamWaitEvent", other, event, 0)
        add(card, y, x)
        assert (y.read() == 4).all()
    finally:
        card.stream = own
        driver.set_late(False)
        driver.call("cuStreamDestroy_v2", other)
        driver.call("cuEventDestroy_v2", event)
        driver.call("cuStreamSynchronize", own)


# ---- graphs ----------------------------------------------------------------------------------------------------------


class Graph:
    """What `queue` gives the card's stream, captured and instantiated."""

    def __init__(self, card, queue):
        self.card, self.call = card, card.driver.call
        graph, self.exec = ctypes.c_void_p(), ctypes.c_void_p()
        card.use()
        self.call("cuStreamBeginCapture_v2", card.stream, THREAD_LOCAL)
        try:
            queue()
        finally:
            ended = card.driver.status("cuStreamEndCapture", card.stream, ctypes.byref(graph))
        if ended != 0:
            raise DriverError("cuStreamEndCapture", ended)
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(self.exec), graph, ctypes.c_uint64(0))
        self.call("cuGraphDestroy", graph)

    def launch(self, stream=None):
        self.call("cuGraphLaunch", self.exec, stream or self.card.stream)

    def free(self):
        self.call("cuGraphExecDestroy", self.exec)


def live_graphs(driver):
    driver.library.tandem_emu_live_graphs.restype = ctypes.c_uint64
    return driver.library.tandem_emu_live_graphs()


def pinned(card, count):
    """Pinned memory of `count` floats: its address, and the same as an array."""
    address = ctypes.c_void_p()
    card.use()
    card.driver.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(4 * count), 3)
    return address, np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))


def a_graph_runs_what_was_captured_as_often_as_it_is_launched(driver, cards):
    card, size = cards[0], ctypes.c_size_t
    x, y = ones(card), ones(card)
    (sent, values), (made, results) = pinned(card, 4), pinned(card, 4)

    def queue():
        driver.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(y.address), sent, size(16), card.stream)
        add(card, x, y)
        card.launch_early("add", (1, 1, 1), (256, 1, 1), x, 4, y, 4, 4, 1)
        driver.call("cuMemcpyDtoHAsync_v2", made, ctypes.c_uint64(x.address), size(16), card.stream)

    graph = Graph(card, queue)
    assert (x.read() == 1).all(), "a capture ran"
    for late in (False, True):
        driver.set_late(late)
        for value in (3, 5):
            before = x.read()
            values[:] = value
            graph.launch()
            driver.call("cuStreamSynchronize", card.stream)
            assert (results == before + 2 * value).all() and (x.read() == results).all()
    driver.set_late(False)
    graph.free()
    for address in (sent, made):
        driver.call("cuMemFreeHost", address)
    assert live_graphs(driver) == 0


def what_a_graph_cannot_do_is_refused_and_the_capture_fails(driver, cards):
    card = cards[0]
    card.use()
    x, event, other = ones(card), ctypes.c_void_p(), ctypes.c_void_p()
    pageable, address, size = np.zeros(4, F), ctypes.c_uint64(x.address), ctypes.c_size_t(16)
    host, free, total = pageable.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuEventCreate", ctypes.byref(event), 0)
    driver.call("cuStreamCreate", ctypes.byref(other), 1)
    driver.call("cuEventRecord", event, other)
    forbidden = [
        (CAPTURE_UNSUPPORTED, "cuStreamSynchronize", card.stream),
        (CAPTURE_UNSUPPORTED, "cuStreamQuery", card.stream),
        (CAPTURE_UNSUPPORTED, "cuCtxSynchronize"),
        (CAPTURE_UNSUPPORTED, "cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), size),
        (CAPTURE_UNSUPPORTED, "cuMemFree_v2", address),
        (CAPTURE_UNSUPPORTED, "cuMemHostAlloc", ctypes.byref(ctypes.c_void_p()), size, 0),
        (CAPTURE_UNSUPPORTED, "cuMemcpyHtoD_v2", address, host, size),
        (CAPTURE_UNSUPPORTED, "cuMemcpyHtoDAsync_v2", address, host, size, card.stream),
        (CAPTURE_UNSUPPORTED, "cuMemcpyDtoHAsync_v2", host, address, size, card.stream),
        (CAPTURE_ISOLATION, "cuStreamWaitEvent", card.stream, event, 0),
    ]
    for status, *call in forbidden:
        try:
            Graph(card, lambda: refused(status, driver.call, *call))
        except DriverError as e:
            assert (e.args[0], e.status) == (f"cuStreamEndCapture returned {CAPTURE_INVALIDATED}", CAPTURE_INVALIDATED), call
        else:
            raise AssertionError(f"a capture with {call[0]} gave a graph")
    Graph(card, lambda: driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))).free()
    Graph(card, lambda: driver.call("cuStreamSynchronize", other)).free()
    add(card, x, x)
    assert (x.read() == 2).all(), "the stream is not well after a capture that failed"
    driver.call("cuStreamDestroy_v2", other)
    driver.call("cuEventDestroy_v2", event)
    assert live_graphs(driver) == 0


def an_event_of_a_capture_is_none_of_the_host(driver, cards):
    card, event = cards[0], ctypes.c_void_p()
    card.use()
    driver.call("cuEventCreate", ctypes.byref(event), 0)

    def queue():
        driver.call("cuEventRecord", event, card.stream)
        driver.call("cuStreamWaitEvent", card.stream, event, 0)

    Graph(card, queue).free()
    refused(CAPTURED_EVENT, driver.call, "cuEventSynchronize", event)
    refused(CAPTURED_EVENT, driver.call, "cuEventQuery", event)
    driver.call("cuEventRecord", event, card.stream)
    driver.call("cuEventSynchronize", event)
    driver.call("cuEventDestroy_v2", event)


def captures_begin_once_end_once_and_in_one_mode(driver, cards):
    card, graph = cards[0], ctypes.c_void_p()
    card.use()
    refused(INVALID_VALUE, driver.call, "cuStreamEndCapture", card.stream, ctypes.byref(graph))
    refused(NOT_SUPPORTED, driver.call, "cuStreamBeginCapture_v2", card.stream, 0)
    refused(CAPTURE_UNSUPPORTED, driver.call, "cuStreamBeginCapture_v2", None, THREAD_LOCAL)
    begin_again = lambda: refused(INVALID_VALUE, driver.call, "cuStreamBeginCapture_v2", card.stream, THREAD_LOCAL)
    empty = Graph(card, begin_again)
    empty.launch()
    refused(INVALID_HANDLE, empty.launch, cards[1].stream)
    empty.free()
    refused(INVALID_HANDLE, empty.free)
    refused(INVALID_HANDLE, empty.launch)


def a_graph_fails_on_demand(driver, cards):
    card = cards[0]
    x, y = ones(card), ones(card)
    graph = Graph(card, lambda: add(card, x, y))
    driver.library.tandem_emu_fail_launch_after(ctypes.c_uint64(1), LAUNCH_FAILED)
    graph.launch()
    refused(LAUNCH_FAILED, graph.launch)
    refused(LAUNCH_FAILED, graph.launch)
    driver.library.tandem_emu_heal(0)
    assert (x.read() == 2).all()
    graph.free()


def a_graph_with_freed_memory_ends_the_context(driver, cards):
    card = cards[0]
    x, y = ones(card), ones(card)
    graph = Graph(card, lambda: add(card, x, y))
    card.free_all()
    graph.launch()
    refused(ILLEGAL_ADDRESS, driver.call, "cuStreamSynchronize", card.stream)
    driver.library.tandem_emu_heal(0)
    graph.free()


def launches_take_the_attributes_that_the_engine_uses(driver, cards):
    card = cards[0]
    x, y = ones(card), ones(card)
    card.launch_early("add", (1, 1, 1), (256, 1, 1), x, 4, y, 4, 4, 1)
    assert (x.read() == 2).all()
    config, attribute = Config(), Attribute(id=2)
    config.grid, config.block, config.stream = (1, 1, 1), (256, 1, 1), card.stream
    config.attributes, config.count = ctypes.pointer(attribute), 1
    arguments = card.packed((x, 4, y, 4, 4, 1))
    launch = lambda: driver.call("cuLaunchKernelEx", ctypes.byref(config), card.function("add"), arguments, None)
    refused(NOT_SUPPORTED, launch)
    attribute.id = 0
    launch()
    assert (x.read() == 3).all()


def times_between_events_rise(driver, cards):
    card, ms = cards[0], ctypes.c_float(-1)
    card.use()
    timed, untimed = [ctypes.c_void_p(), ctypes.c_void_p()], ctypes.c_void_p()
    for event in timed:
        driver.call("cuEventCreate", ctypes.byref(event), 0)
    driver.call("cuEventCreate", ctypes.byref(untimed), 2)
    refused(INVALID_HANDLE, driver.call, "cuEventElapsedTime", ctypes.byref(ms), *timed)
    driver.call("cuEventRecord", timed[0], card.stream)
    add(card, ones(card, 4096), ones(card, 4096), width=4096, grid=(16, 1, 1))
    driver.call("cuEventRecord", timed[1], card.stream)
    driver.call("cuEventElapsedTime", ctypes.byref(ms), *timed)
    assert ms.value > 0
    refused(INVALID_HANDLE, driver.call, "cuEventElapsedTime", ctypes.byref(ms), timed[0], untimed)
    for event in (*timed, untimed):
        driver.call("cuEventDestroy_v2", event)


# ---- the process ends ------------------------------------------------------------------------------------------------


def dies_behind_the_end_of_an_allocation(driver, cards):
    """touched 0 bytes behind the end of 1024 bytes of card 0"""
    x, y = ones(cards[0], 512), ones(cards[0], 256)
    add(cards[0], x, y, width=512, grid=(2, 1, 1))


def dies_where_padding_was_written(driver, cards):
    """behind the end of 20 bytes of card 0 was written"""
    add(cards[0], ones(cards[0], 5), ones(cards[0], 8), width=8)


def dies_before_an_allocation(driver, cards):
    """of 16 bytes of card 0"""
    x = ones(cards[0])
    cards[0].launch("gather", (1, 1, 1), (256, 1, 1), x, -(1 << 16), ones(cards[0]), 4, cards[0].upload([1], np.uint32), 4, 1)


def dies_at_a_divergent_barrier(driver, cards):
    """is not reached by all"""
    cards[0].launch("probe_divergent_barrier", (1, 1, 1), (64, 1, 1))


def dies_where_lanes_meet_at_different_places(driver, cards):
    """the lanes of a warp meet at different places"""
    cards[0].launch("probe_divergent_warp", (1, 1, 1), (32, 1, 1), ones(cards[0], 32))


def dies_where_nobody_waits_for_the_kernel_before(driver, cards):
    """probe_exp begins early and none of its threads waits for the kernel before"""
    x = ones(cards[0])
    cards[0].launch_early("probe_exp", (1, 1, 1), (256, 1, 1), x, x, 4)


def dies_where_a_kernel_reads_early_what_the_one_before_writes(driver, cards):
    """kernel probe_early_read, block (0, 0, 0), thread (0, 0, 0) reads before it waits what a launch wrote that may still run"""
    x, y = ones(cards[0]), ones(cards[0])
    add(cards[0], x, y)
    cards[0].launch_early("probe_early_read", (1, 1, 1), (256, 1, 1), x, y, 4)


def dies_where_it_was_written_two_launches_before(driver, cards):
    """kernel probe_early_read, block (0, 0, 0), thread (0, 0, 0) reads before it waits what a launch wrote that may still run"""
    x, y, z = (ones(cards[0]) for _ in range(3))
    add(cards[0], x, y)
    cards[0].launch_early("add", (1, 1, 1), (256, 1, 1), z, 4, y, 4, 4, 1)
    cards[0].launch_early("probe_early_read", (1, 1, 1), (256, 1, 1), x, y, 4)


def dies_where_a_kernel_writes_before_it_waits(driver, cards):
    """kernel probe_early_write, block (0, 0, 0), thread (0, 0, 0) writes before it waits"""
    y = ones(cards[0], 256)
    add(cards[0], ones(cards[0]), ones(cards[0]))
    cards[0].launch_early("probe_early_write", (1, 1, 1), (256, 1, 1), y)


def reads_early_what_has_ended_or_is_shown(driver, cards):
    x, y, z = ones(cards[0]), ones(cards[0]), ones(cards[0], 256)
    read = lambda launch, of: launch("probe_early_read", (1, 1, 1), (256, 1, 1), of, y, 4)
    add(cards[0], x, y)
    read(cards[0].launch, x)
    read(cards[0].launch_early, x)
    assert list(y.read()) == list(x.read())
    cards[0].launch_early("probe_shown", (1, 1, 1), (256, 1, 1), z)
    read(cards[0].launch_early, z)
    assert (y.read() == 2).all()


# With libraries that know who wrote what (kernels_emu.sh --reads).
DYING_EARLY = [
    dies_where_a_kernel_reads_early_what_the_one_before_writes,
    dies_where_it_was_written_two_launches_before,
    dies_where_a_kernel_writes_before_it_waits,
]
DYING = [
    dies_behind_the_end_of_an_allocation,
    dies_where_padding_was_written,
    dies_before_an_allocation,
    dies_at_a_divergent_barrier,
    dies_where_lanes_meet_at_different_places,
    dies_where_nobody_waits_for_the_kernel_before,
]
LIVING = [
    a_kernel_of_an_unknown_name_is_not_found,
    an_image_of_somebody_else_is_refused,
    a_pointer_into_another_card_ends_the_context_until_peers_may_reach,
    copies_stay_on_their_card_and_inside_allocations,
    freed_memory_is_no_argument,
    a_block_larger_than_the_kernel_was_built_for_is_refused,
    a_stream_of_another_card_is_refused,
    memory_ends_where_the_card_ends,
    new_memory_holds_no_numbers,
    allocations_fail_after_so_many_bytes,
    a_launch_fails_after_so_many,
    the_compiler_asks_for_every_header_and_for_no_contraction,
    late_work_shows_a_missing_wait,
    a_graph_runs_what_was_captured_as_often_as_it_is_launched,
    what_a_graph_cannot_do_is_refused_and_the_capture_fails,
    an_event_of_a_capture_is_none_of_the_host,
    captures_begin_once_end_once_and_in_one_mode,
    a_graph_fails_on_demand,
    a_graph_with_freed_memory_ends_the_context,
    launches_take_the_attributes_that_the_engine_uses,
    times_between_events_rise,
]


def start(folder):
    driver = Driver(folder)
    return driver, [Card(driver, 0), Card(driver, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=pathlib.Path, default=KERNELS.parent / "target/emu")
    parser.add_argument("--reads", type=pathlib.Path, help="libraries that know who wrote what")
    parser.add_argument("--die", choices=[d.__name__ for d in DYING + DYING_EARLY], help="run one check that ends the process")
    options = parser.parse_args()
    if options.die:
        globals()[options.die](*start(options.libraries))
        return
    failed = 0
    driver, cards = start(options.libraries)
    for check in LIVING:
        try:
            check(driver, cards)
            print(f"ok {check.__name__}")
        except (AssertionError, DriverError) as e:
            failed += 1
            print(f"FAILED {check.__name__}: {e}")
        for card in cards:
            card.free_all()
    driver.library.tandem_emu_live_allocations.restype = ctypes.c_uint64
    left = driver.library.tandem_emu_live_allocations()
    if left != 0:
        failed += 1
        print(f"FAILED {left} allocations are left")
    dying = [(check, options.libraries) for check in DYING]
    if options.reads:
        reads_early_what_has_ended_or_is_shown(*start(options.reads))
        print("ok reads_early_what_has_ended_or_is_shown")
        dying += [(check, options.reads) for check in DYING_EARLY]
    for check, libraries in dying:
        command = [sys.executable, __file__, "--libraries", str(libraries), "--die", check.__name__]
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        good = ended.returncode == -6 and check.__doc__ in ended.stderr
        failed += not good
        print(f"ok {check.__name__}" if good else f"FAILED {check.__name__}: {ended.returncode} {ended.stderr}")
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
