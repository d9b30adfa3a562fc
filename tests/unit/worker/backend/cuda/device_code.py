#!/usr/bin/env python3
"""Checks the machine code that nvcc has generated for the kernels. There must be no register
spills. The registers must be few enough for the required number of resident blocks. A kernel that
moves data must use accesses of 16 bytes.

  device_code.py LIBRARY      reads libevergrad_cuda.so
  device_code.py --self-test  shows that each rule can fail

The check needs cuobjdump and nvdisasm. These are the programs of CUDA, in PATH or
/usr/local/cuda/bin, or those of the wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm. Without
them, or without the library, the check is skipped (exit code 77). Each kernel of Evergrad is listed
either in WIDE, or in NARROW with a reason.
"""
import collections
import glob
import os
import re
import shutil
import subprocess
import sys

ARCHITECTURES = ("sm_80", "sm_90")
THREADS, REGISTERS = (
    256,
    65536,
)  # threads per block (kernels/team.h), and registers per multiprocessor

NARROW_ELEMENT, WIDE_ELEMENT = r"evergrad::cuda::B?Float16", r"float"
# Kernels that must use wide accesses: a pattern of their names, and the number of bits of their
# widest load and of their widest store. Kernels that convert between two types read or write 64
# bits on the side of the smaller type.
WIDE = (
    (r"(Chain<.*|SumMap<)%s, %s>" % (NARROW_ELEMENT, WIDE_ELEMENT), 64, 128),
    (r"(Chain<.*|SumMap<)%s, %s>" % (WIDE_ELEMENT, NARROW_ELEMENT), 128, 64),
    (
        r"(Chain|SumMap|BiasActivateMap|DropoutMap|PadMap|MaxPoolMap|MaxPoolBackMap"
        r"|RowsOfChannelsMap|CopyColumnsMap<evergrad::cuda::Pack)<",
        128,
        128,
    ),
    (r"(ColumnPartsMap|NotFiniteMap)<", 128, 0),
)
NARROW = (
    (r"TransposeMap<", "filters: a few MB, from the second-level cache"),
    (
        r"CopyColumnsMap<(float|%s)>" % NARROW_ELEMENT,
        "columns that are no whole accesses; others are CopyColumnsMap<Pack>",
    ),
    (
        r"AveragePool(Back)?Map<",
        "once a network, at its end, where images are smallest; a warp reads whole sectors",
    ),
    (
        r"TeamKernel<",
        "a warp or block reads a row as neighbours, again from the first-level cache; "
        "the sums of parts have a hundredth of the bytes of their operands",
    ),
    (
        r"GatherMap<|ScatterKeysMap|BagScaleMap|FactorizationBackMap",
        "rows of tables lie anywhere; a warp reads whole sectors of each",
    ),
    (r"LossSumMap|OrderedSumMap", "one thread adds in order; it reads 16 at a time"),
)
# Kernels that may use a stack: a pattern of their names, the largest size of the stack in bytes,
# and the reason.
STACK = ((r"LossTeam", 16, "values kept during its calls of log, exp and log1p of doubles"),)
RESIDENT = 4  # blocks per multiprocessor
FEWER = (
    (
        r"(ColumnPartsMap|RowsOfChannelsMap)<",
        2,
        "a thread has up to eight accesses of 16 bytes under way, in registers",
    ),
    (r"MaxPoolBackMap<float>", 3, "four sums, four places and a window's numbers"),
)


class Kernel:
    def __init__(self, name):
        self.name, self.registers, self.stack, self.loads, self.stores, self.spills = (
            name,
            0,
            0,
            0,
            0,
            0,
        )


def breaches(kernels):
    """Returns the findings as sentences. Kernels of other libraries (CUB) are not checked."""
    found = []
    for kernel in kernels:
        if "evergrad::cuda::" not in kernel.name or "cub::" in kernel.name.split("(")[0]:
            continue
        name = kernel.name.split("(")[0].replace("void ", "")
        say = lambda text: found.append("%s: %s" % (name.replace("evergrad::cuda::", ""), text))
        wide = next((w for w in WIDE if re.search(w[0], name)), None)
        if wide is None and not any(re.search(n[0], name) for n in NARROW):
            say("is neither in WIDE nor in NARROW")
        if wide is not None and (kernel.loads < wide[1] or kernel.stores < wide[2]):
            say(
                "widest load %d and store %d bits, want %d and %d"
                % (kernel.loads, kernel.stores, wide[1], wide[2])
            )
        allowed = next((s[1] for s in STACK if re.search(s[0], name)), 0)
        if kernel.stack > allowed or (kernel.spills and not allowed):
            say("%d bytes of stack, %d accesses to it" % (kernel.stack, kernel.spills))
        want = next((f[1] for f in FEWER if re.search(f[0], name)), RESIDENT)
        resident = REGISTERS // (THREADS * (-(-max(kernel.registers, 1) // 8) * 8))
        if resident < want:
            say("%d registers let %d blocks reside, want %d" % (kernel.registers, resident, want))
    return found


def kernels_of(library, cuobjdump, architecture):
    run = lambda what: subprocess.run(
        [cuobjdump, "-arch", architecture, what, library],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    kernels = collections.OrderedDict()
    at = None
    for line in run("-res-usage").splitlines():
        if match := re.match(r"\s*Function (\S+):", line):
            at = kernels.setdefault(match[1], Kernel(match[1]))
        elif at is not None and (
            match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", line)
        ):
            at.registers, at.stack, at = int(match[1]), int(match[2]) + int(match[3]), None
    for line in run("-sass").splitlines():
        if match := re.match(r"\s*Function : (\S+)", line):
            at = kernels[match[1]]
        elif match := re.match(
            r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(LDG|STG|LDL|STL)((?:\.[A-Z0-9_]+)*)\b", line
        ):
            widths = [
                int(w.lstrip("US"))
                for w in match[2].split(".")
                if re.fullmatch(r"[US]?(8|16)|64|128", w)
            ]
            bits = widths[0] if widths else 32
            if match[1] == "LDG":
                at.loads = max(at.loads, bits)
            elif match[1] == "STG":
                at.stores = max(at.stores, bits)
            else:
                at.spills += 1
    plain = subprocess.run(
        ["c++filt"], check=True, input="\n".join(kernels), capture_output=True, text=True
    ).stdout.splitlines()
    for kernel, name in zip(kernels.values(), plain):
        kernel.name = name
    return list(kernels.values())


def self_test():
    def kernel(name, registers=32, stack=0, loads=128, stores=128, spills=0):
        made = Kernel(
            "void evergrad::cuda::MapKernel<evergrad::cuda::%s >(long, evergrad::cuda::%s)"
            % (name, name)
        )
        made.registers, made.stack, made.loads, made.stores, made.spills = (
            registers,
            stack,
            loads,
            stores,
            spills,
        )
        return made

    good = "SumMap<float, float>"
    assert (
        breaches(
            [
                kernel(good),
                kernel("TransposeMap<float, float>", loads=32, stores=32),
                kernel("LossTeam>, TeamKernel<32", stack=8, spills=2),
            ]
        )
        == []
    )
    for bad in (
        kernel(good, loads=32),
        kernel(good, stores=64),
        kernel(good, stack=8),
        kernel(good, spills=1),
        kernel(good, registers=65),
        kernel("ColumnPartsMap<1, x>", registers=129),
        kernel("ColumnPartsMap<1, x>", loads=64),
        kernel("OtherMap<float>"),
        kernel("SumMap<float, evergrad::cuda::BFloat16>", stores=32),
        kernel("SumMap<evergrad::cuda::Float16, float>", loads=16),
    ):
        assert len(breaches([bad])) == 1, bad.name
    print("each rule can fail")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    library = sys.argv[1]
    if not os.path.exists(library):
        print("skipped: built without CUDA")
        return 77
    folders = ["/usr/local/cuda/bin"] + [
        folder for path in sys.path for folder in sorted(glob.glob(path + "/nvidia/*/bin"))
    ]
    path = os.pathsep.join([os.environ.get("PATH", "")] + folders)
    cuobjdump = shutil.which("cuobjdump", path=path)
    if cuobjdump is None or shutil.which("nvdisasm", path=path) is None:
        print("skipped: no cuobjdump and nvdisasm on this machine")
        return 77
    os.environ["PATH"] = path  # cuobjdump looks for nvdisasm there
    found = []
    for architecture in ARCHITECTURES:
        kernels = kernels_of(library, cuobjdump, architecture)
        ours = [k for k in kernels if "evergrad::cuda::" in k.name]
        print("%s: %d kernels, of which %d are ours" % (architecture, len(kernels), len(ours)))
        if len(ours) < 100:
            found.append("%s: fewer kernels than there are operations" % architecture)
        found += ["%s: %s" % (architecture, breach) for breach in breaches(kernels)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
