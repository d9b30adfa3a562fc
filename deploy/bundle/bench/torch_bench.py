#!/usr/bin/env python3
"""Measures PyTorch's training step (forward, loss, backward) of ResNet-50 on this host's GPU, for
gpu_check.sh: channels-last, in the requested precision, eager and compiled. Prints one JSON object.
Ends with 3 if torch is missing or finds no GPU. `--device cpu` tests the script itself on a host
without a GPU; its figures must not be compared with Evergrad's.

  torch_bench.py [--batch 256] [--steps 20] [--image 224] [--precision float32|tf32|bfloat16]
  [--no-compile] [--compile-seconds 90] [--device cuda|cpu]"""
import argparse
import json
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--image", type=int, default=224)
parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="float32")
parser.add_argument("--no-compile", action="store_true")
parser.add_argument(
    "--compile-seconds",
    type=int,
    default=90,
    help="seconds for the compiled measurement; if it takes longer, only the eager rate is given",
)
parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
arguments = parser.parse_args()
try:
    import torch
    from torch import nn
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(3)
if arguments.device == "cuda" and not torch.cuda.is_available():
    print("torch %s finds no GPU on this host" % torch.__version__, file=sys.stderr)
    sys.exit(3)


class Block(nn.Module):
    def __init__(self, inputs, filters, stride):
        super().__init__()
        convolution = lambda i, o, k, s: nn.Sequential(
            nn.Conv2d(i, o, k, s, k // 2), nn.BatchNorm2d(o)
        )
        self.short = (
            nn.Identity() if inputs == 4 * filters else convolution(inputs, 4 * filters, 1, stride)
        )
        self.long = nn.Sequential(
            convolution(inputs, filters, 1, stride),
            nn.ReLU(True),
            convolution(filters, filters, 3, 1),
            nn.ReLU(True),
            convolution(filters, 4 * filters, 1, 1),
        )

    def forward(self, x):
        return torch.relu(self.short(x) + self.long(x))


def resnet50():
    layers, inputs = [
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2, 1),
    ], 64
    for filters, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Block(inputs, filters, stride if block == 0 else 1))
            inputs = 4 * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
    arguments.precision == "tf32"
)
torch.backends.cudnn.benchmark = True
synchronize = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
model = resnet50().to(arguments.device).to(memory_format=torch.channels_last)
parameters = sum(p.numel() for p in model.parameters())
assert parameters == 25583592, parameters  # as configs/examples/resnet50.yaml
images = torch.rand(
    arguments.batch, 3, arguments.image, arguments.image, device=arguments.device
).to(memory_format=torch.channels_last)
labels = torch.randint(1000, (arguments.batch,), device=arguments.device)


def rate(call):
    def step():
        for p in model.parameters():
            p.grad = None
        with torch.autocast(
            arguments.device, torch.bfloat16, enabled=arguments.precision == "bfloat16"
        ):
            loss = nn.functional.cross_entropy(call(images).float(), labels)
        loss.backward()

    for _ in range(6):
        step()
    synchronize()
    begin = time.perf_counter()
    for _ in range(arguments.steps):
        step()
    synchronize()
    return arguments.batch * arguments.steps / (time.perf_counter() - begin)


said = {
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "cudnn": torch.backends.cudnn.version(),
    "device": torch.cuda.get_device_name(0) if arguments.device == "cuda" else "cpu",
    "batch": arguments.batch,
    "precision": arguments.precision,
    "eager_images_per_second": rate(model),
    "compiled_images_per_second": None,
}
if not arguments.no_compile:

    def late(*_):
        raise TimeoutError("the compiled model took more than %d s" % arguments.compile_seconds)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(arguments.compile_seconds)
    try:
        said["compiled_images_per_second"] = rate(torch.compile(model))
    except Exception as e:  # for example, a host without a C++ compiler
        said["compile_failed"] = str(e).splitlines()[0][:200] if str(e) else type(e).__name__
    signal.alarm(0)
print(json.dumps(said))
