#!/usr/bin/env python3
"""Images a second of our loader beside torchvision's DataLoader, one thread (process) each, in turns in one run.
    ${XDG_CACHE_HOME:-~/.cache}/ddprun-tests/bin/python tests/bench/worker/loader_bench.py [build/release]
Pictures: 64 JPEGs of 500 x 375, about 70 KB each, like ImageNet's. Aim: at least 1.5 times torchvision's."""
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import torch
from PIL import Image
from torchvision import datasets, transforms as t

build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
torch.set_num_threads(1)


def pictures(folder):
    rng = numpy.random.default_rng(0)
    y, x = numpy.mgrid[0:375, 0:500]
    for i in range(64):
        waves = [127 + 80 * numpy.sin(x / (5 + i + 7 * c)) * numpy.cos(y / (9 + c + i)) for c in range(3)]
        pixels = numpy.clip(numpy.stack(waves, -1) + rng.normal(0, 12, (375, 500, 1)), 0, 255).astype(numpy.uint8)
        path = folder / f"class{i % 4}" / f"{i:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=85)
    return sum(p.stat().st_size for p in folder.glob("*/*")) / 64 / 1000


def theirs(folder, seconds):
    data = datasets.ImageFolder(folder, t.Compose([
        t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(),
        t.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]))
    loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=1, persistent_workers=True, prefetch_factor=2)
    for _ in loader:  # the worker's start is not what is measured
        pass
    count, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        for images, _ in loader:
            count += len(images)
    return count / (time.monotonic() - start)


def ours(folder, seconds):
    run = subprocess.run([build / "tests" / "loader_bench", folder, "1", "224", str(seconds)], capture_output=True,
                         text=True, check=True)
    return float(run.stdout)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    kilobytes = pictures(folder)
    pairs = [(theirs(folder, 3), ours(folder, 3)) for _ in range(4)]
    best_theirs, best_ours = max(p[0] for p in pairs), max(p[1] for p in pairs)
    print(f"JPEG 500x375, {kilobytes:.0f} KB: torchvision {best_theirs:.0f} images/s, ddprun {best_ours:.0f} images/s, "
          f"ratio of the best {best_ours / best_theirs:.2f}, median of the pairs "
          f"{sorted(o / th for th, o in pairs)[len(pairs) // 2]:.2f} (aim 1.5)")
