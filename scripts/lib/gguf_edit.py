"""gguf_edit.py - reads a GGUF file into memory, edits it, writes it anew: one file or shards, any order and alignment.

Python's standard library only. For files small enough to be held twice; the large ones of make_sparse_glm52.py are
written by its own code. Format: ggml docs/gguf.md, restated.
SPDX-License-Identifier: MIT
"""
import os
import struct
import sys
from array import array

U8, I8, U16, I16, U32, I32, F32V, BOOL, STRING, ARRAY, U64, I64, F64V = range(13)
SCALARS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32V: "f", BOOL: "B", U64: "Q", I64: "q",
           F64V: "d"}
F32, F16, BF16 = 0, 1, 30
ELEMENT_BYTES = {F32: 4, F16: 2, BF16: 2}

if sys.byteorder != "little":
    raise SystemExit("gguf_edit.py works on little-endian machines only")


class Key:
    """A metadata value: kind, and for arrays the kind of the elements. Strings are bytes."""

    def __init__(self, kind, value, elem=None):
        self.kind, self.value, self.elem = kind, value, elem

    def packed(self):
        if self.kind != ARRAY:
            return struct.pack("<I", self.kind) + pack_value(self.kind, self.value)
        head = struct.pack("<IIQ", ARRAY, self.elem, len(self.value))
        return head + b"".join(pack_value(self.elem, v) for v in self.value)


class Tensor:
    def __init__(self, name, dims, kind, data):
        self.name, self.dims, self.type, self.data = name, list(dims), kind, data

    def copy(self):
        return Tensor(self.name, self.dims, self.type, self.data)

    def numbers(self):
        """All elements as Python floats."""
        if self.type == F32:
            return array("f", self.data)
        if self.type == F16:
            return array("f", struct.unpack(f"<{len(self.data) // 2}e", self.data))
        if self.type == BF16:
            return array("f", widen_bf16(self.data))
        raise ValueError(f"{self.name} has type {self.type}")


class Model:
    def __init__(self, kv, tensors, version=3):
        self.kv, self.tensors, self.version = kv, tensors, version

    def copy(self):
        return Model(dict(self.kv), [t.copy() for t in self.tensors], self.version)

    @property
    def arch(self):
        return self.kv["general.architecture"].value.decode()

    def key(self, suffix):
        """Full name of a key of the architecture."""
        return f"{self.arch}.{suffix}"

    def get(self, suffix):
        return self.kv[self.key(suffix)].value

    def put(self, suffix, kind, value, elem=None):
        self.kv[self.key(suffix)] = Key(kind, value, elem)

    def drop(self, *suffixes):
        """Each of them must have been there: a variant that changes nothing would prove nothing."""
        for suffix in suffixes:
            del self.kv[self.key(suffix)]

    def find(self, name):
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)

    def has(self, name):
        return any(t.name == name for t in self.tensors)

    def replace(self, old, new):
        """Puts a list of tensors in the place of the first of the old ones."""
        at = min(i for i, t in enumerate(self.tensors) if t.name in old)
        kept = [t for t in self.tensors if t.name not in old]
        if len(kept) + len(old) != len(self.tensors):
            raise KeyError(f"{old} are not all there")
        self.tensors = kept[:at] + list(new) + kept[at:]


# ---- packing ----


def pack_value(kind, value):
    if kind == STRING:
        return struct.pack("<Q", len(value)) + value
    return struct.pack("<" + SCALARS[kind], value)


def widen_bf16(data):
    out = bytearray(2 * len(data))
    out[2::4], out[3::4] = data[0::2], data[1::2]
    return bytes(out)


def narrow_bf16(data):
    """F32 bytes as BF16, or None where a value has more digits."""
    if any(data[0::4]) or any(data[1::4]):
        return None
    out = bytearray(len(data) // 2)
    out[0::2], out[1::2] = data[2::4], data[3::4]
    return bytes(out)


def narrow_f16(numbers):
    """Floats as F16 bytes, or None where a value does not survive."""
    try:
        raw = struct.pack(f"<{len(numbers)}e", *numbers)
    except OverflowError:
        return None
    return raw if array("f", struct.unpack(f"<{len(numbers)}e", raw)) == numbers else None


def converted(t, kind):
    """The tensor in another float type, or None where that is not exact."""
    if t.type == kind:
        return t.copy()
    wide = t.numbers()
    data = {F32: lambda: wide.tobytes(), F16: lambda: narrow_f16(wide),
            BF16: lambda: narrow_bf16(wide.tobytes())}[kind]()
    return None if data is None else Tensor(t.name, t.dims, kind, data)


# ---- reading ----


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def get(self, fmt):
        v = struct.unpack_from("<" + fmt, self.data, self.at)[0]
        self.at += struct.calcsize("<" + fmt)
        return v

    def string(self):
        n = self.get("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        return self.string() if kind == STRING else self.get(SCALARS[kind])


def read_keys(path):
    return read(path).kv


def read(path):
    with open(path, "rb") as f:
        r = _Reader(f.read())
    if r.get("I") != 0x46554747:
        raise ValueError(f"{path} is no GGUF file")
    version, n_tensors, n_kv = r.get("I"), r.get("Q"), r.get("Q")
    kv, infos = {}, []
    for _ in range(n_kv):
        name, kind = r.string().decode(), r.get("I")
        if kind == ARRAY:
            elem, n = r.get("I"), r.get("Q")
            kv[name] = Key(ARRAY, [r.value(elem) for _ in range(n)], elem)
        else:
            kv[name] = Key(kind, r.value(kind))
    for _ in range(n_tensors):
        name = r.string().decode()
        dims = [r.get("Q") for _ in range(r.get("I"))]
        infos.append((name, dims, r.get("I"), r.get("Q")))
    align = kv["general.alignment"].value if "general.alignment" in kv else 32
    start = -(-r.at // align) * align
    tensors = []
    for name, dims, kind, offset in infos:
        n = ELEMENT_BYTES[kind]
        for d in dims:
            n *= d
        tensors.append(Tensor(name, dims, kind, r.data[start + offset:start + offset + n]))
    return Model(kv, tensors, version)


# ---- writing ----


def header(kv, tensors, offsets, version=3):
    """Everything before the padding in front of the data section."""
    out = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(kv))]
    for name, key in kv.items():
        out.append(pack_value(STRING, name.encode()) + key.packed())
    for t, offset in zip(tensors, offsets):
        out.append(pack_value(STRING, t.name.encode()) + struct.pack("<I", len(t.dims)))
        out.append(struct.pack(f"<{len(t.dims)}QIQ", *t.dims, t.type, offset))
    return b"".join(out)


def write(path, model, alignment=None, data_order=None, gap=0, cut_padding=False):
    """alignment: written as general.alignment when given. data_order: order of the data of the tensors, by number.
    gap: so many further alignments between tensors. cut_padding: nothing behind the last tensor's last byte."""
    kv = dict(model.kv)
    if alignment is not None:
        kv["general.alignment"] = Key(U32, alignment)
    align = kv["general.alignment"].value if "general.alignment" in kv else 32
    order = data_order if data_order is not None else range(len(model.tensors))
    offsets, at, end = [0] * len(model.tensors), 0, 0
    for i in order:
        offsets[i] = at
        end = at + len(model.tensors[i].data)
        at = (-(-end // align) + gap) * align
    head = header(kv, model.tensors, offsets, model.version)
    start = -(-len(head) // align) * align if model.tensors else len(head)
    image = bytearray(start + (end if cut_padding else at))
    image[:len(head)] = head
    for t, offset in zip(model.tensors, offsets):
        image[start + offset:start + offset + len(t.data)] = t.data
    with open(path, "wb") as f:
        f.write(image)


def shard_path(stem, number, count):
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def write_shards(stem, model, groups, alignments=None, total=None, count=None):
    """groups: per shard the tensors in it. Only the first carries the model's metadata. total, count: what the files
    say in place of the truth. Returns the paths."""
    paths = []
    n = sum(len(g) for g in groups) if total is None else total
    for i, group in enumerate(groups):
        kv = dict(model.kv) if i == 0 else {}
        kv["split.no"] = Key(U16, i)
        kv["split.count"] = Key(U16, len(groups) if count is None else count)
        kv["split.tensors.count"] = Key(I32, n)
        path = shard_path(stem, i + 1, len(groups))
        write(path, Model(kv, group, model.version), alignment=alignments[i] if alignments else None)
        paths.append(path)
    return paths

