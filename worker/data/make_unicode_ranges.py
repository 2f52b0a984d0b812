#!/usr/bin/env python3
"""Writes unicode_ranges.cc: which code points are letters (\\p{L}) and numbers (\\p{N}). Run: make_unicode_ranges.py > unicode_ranges.cc"""
import unicodedata


def ranges(letter):
    out, start = [], None
    for c in range(0x110001):
        inside = c < 0x110000 and unicodedata.category(chr(c))[0] == letter
        if inside and start is None:
            start = c
        elif not inside and start is not None:
            out.append((start, c - 1))
            start = None
    return out


print(f"// Made by make_unicode_ranges.py from Unicode {unicodedata.unidata_version}; do not edit.")
print('#include "worker/data/unicode_ranges.h"\n\nnamespace ddprun::data {\nnamespace {\n')
for name, letter in (("kLetters", "L"), ("kNumbers", "N")):
    items = [f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges(letter)]
    print(f"constexpr CodePointRange {name}[] = {{")
    for i in range(0, len(items), 6):
        print("    " + ", ".join(items[i : i + 6]) + ",")
    print("};\n")
print("}  // namespace\n")
print("std::span<const CodePointRange> unicode_letters() { return kLetters; }")
print("std::span<const CodePointRange> unicode_numbers() { return kNumbers; }\n")
print("}  // namespace ddprun::data")
