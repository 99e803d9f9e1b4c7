"""Second opinion on core/gguf and core/block from the `gguf` package of the format's makers.

usage: gguf_check.py list FILE LISTING   compare the listing made by our reader with what the package reads
       gguf_check.py write FILE          write a file with the package's writer, for our reader
       gguf_check.py decode TYPE BLOCKS FLOATS   decode blocks with the package, compare bit for bit
       gguf_check.py encode TYPE FLOATS BLOCKS   encode with the package; our blocks must have no more RMS error
Exit status: 0 they agree, 1 they do not, 77 the package is not installed. SPDX-License-Identifier: MIT
"""
import sys

try:
    import gguf
    import numpy as np
except ImportError as error:
    print(f"SKIP: the Python package gguf cannot be imported ({error})")
    sys.exit(77)


def fail(text):
    print(f"differs: {text}")
    sys.exit(1)


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def field_line(field):
    kinds = [k.name.lower().replace("uint", "u").replace("int", "i").replace("float", "f") for k in field.types]
    if kinds[0] == "array":
        # The package leaves out the element kind of an empty array.
        inner = kinds[1] if len(field.data) else "-"
        head, parts = f"array of {inner}", [field.parts[i] for i in field.data]
    else:
        head, parts = kinds[0], [field.parts[field.data[0]]]
    raw = b"".join(bytes(np.ascontiguousarray(p).view(np.uint8)) for p in parts)
    return f"key {field.name} {head} {len(parts)} {fnv(raw):016x}"


def tensor_line(t):
    ne = [int(v) for v in t.shape] + [1] * (4 - len(t.shape))
    data = bytes(np.ascontiguousarray(t.data).view(np.uint8).reshape(-1)[:64])
    return f"tensor {t.name} {int(t.tensor_type)} {ne[0]} {ne[1]} {ne[2]} {ne[3]} {t.n_bytes} {t.data_offset} {fnv(data):016x}"


def compare(path, listing):
    reader = gguf.GGUFReader(path)
    want = [field_line(f) for f in reader.fields.values() if not f.name.startswith("GGUF.")]
    want += [tensor_line(t) for t in reader.tensors]
    with open(listing, encoding="utf-8") as f:
        got = f.read().splitlines()
    if len(want) != len(got):
        fail(f"{path}: {len(got)} lines, the package sees {len(want)}")
    for g, w in zip(got, want):
        if g != w:
            fail(f"{path}:\n  ours    {g}\n  package {w}")
    print(f"{path}: {len(got)} records agree")


def write(path):
    w = gguf.GGUFWriter(path, "python")
    w.add_uint8("k.u8", 255)
    w.add_int8("k.i8", -1)
    w.add_uint16("k.u16", 65535)
    w.add_int16("k.i16", -2)
    w.add_uint32("k.u32", 4294967295)
    w.add_int32("k.i32", -3)
    w.add_float32("k.f32", 1.5)
    w.add_uint64("k.u64", 2**64 - 1)
    w.add_int64("k.i64", -(2**63))
    w.add_float64("k.f64", -2.25)
    w.add_bool("k.bool", True)
    w.add_string("k.str", "grüße")
    w.add_array("k.strs", ["a", "", "ccc"])
    w.add_array("k.ints", [1, -2, 3])
    w.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    w.add_tensor("f16", np.arange(4, dtype=np.float16))
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("q8_0", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def decode(type_number, blocks, floats):
    try:
        kind = gguf.GGMLQuantizationType(int(type_number))
    except ValueError:
        print(f"SKIP: this gguf package does not know type {type_number}")
        sys.exit(77)
    raw = np.fromfile(blocks, dtype=np.uint8)
    got = np.fromfile(floats, dtype=np.float32)
    if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
        want = raw.view(np.float32 if kind.name == "F32" else np.float16).astype(np.float32)
    elif kind == gguf.GGMLQuantizationType.F64:
        with np.errstate(all="ignore"):
            want = raw.view(np.float64).astype(np.float32)
    else:
        with np.errstate(all="ignore"):
            try:
                want = gguf.quants.dequantize(raw.reshape(1, -1), kind).reshape(-1)
            except NotImplementedError:
                print(f"SKIP: this gguf package has no decoder for {kind.name}")
                sys.exit(77)
    if want.shape != got.shape:
        fail(f"{kind.name}: {got.size} values, the package makes {want.size}")
    # The package adds where the formula subtracts a negated scale; only the sign of a zero can differ by that.
    bad = ~((got == want) | (np.isnan(got) & np.isnan(want)))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        fail(f"{kind.name}: {int(bad.sum())} values, first {i}: ours {got[i]!r}, package {want[i]!r}")
    print(f"{kind.name}: {got.size} values agree")


def encode(type_number, floats, blocks):
    kind = gguf.GGMLQuantizationType(int(type_number))
    values = np.fromfile(floats, dtype=np.float32).reshape(1, -1)
    ours = np.fromfile(blocks, dtype=np.uint8).reshape(1, -1)
    theirs = np.ascontiguousarray(gguf.quants.quantize(values, kind)).view(np.uint8).reshape(1, -1)
    if ours.shape != theirs.shape:
        fail(f"{kind.name}: {ours.size} bytes, the package makes {theirs.size}")
    exact = values.astype(np.float64)
    rms = [float(np.sqrt(np.mean((gguf.quants.dequantize(b, kind).astype(np.float64) - exact) ** 2))) for b in (ours, theirs)]
    print(f"{kind.name}: RMS error {rms[0]:.6g}, of the package {rms[1]:.6g}, ratio {rms[0] / rms[1] if rms[1] else 1:.5f}")
    if not rms[0] <= rms[1] * 1.0001:
        fail(f"{kind.name}: more error than the package's own encoder")


if len(sys.argv) == 4 and sys.argv[1] == "list":
    compare(sys.argv[2], sys.argv[3])
elif len(sys.argv) == 3 and sys.argv[1] == "write":
    write(sys.argv[2])
elif len(sys.argv) == 5 and sys.argv[1] == "decode":
    decode(*sys.argv[2:])
elif len(sys.argv) == 5 and sys.argv[1] == "encode":
    encode(*sys.argv[2:])
else:
    print(__doc__)
    sys.exit(2)
