"""gguf_bytes.py - the pieces of a GGUF header as bytes, so that every field can be written wrong.

SPDX-License-Identifier: MIT
"""
import struct

U64_MAX, U32_MAX = 2 ** 64 - 1, 2 ** 32 - 1
U8, U32, F32V, STRING, ARRAY, U64 = 0, 4, 6, 8, 9, 10
F32, F16, Q8_0, Q4_K, F64 = 0, 1, 8, 12, 28


def u16(v):
    return struct.pack("<H", v)


def u32(v):
    return struct.pack("<I", v)


def u64(v):
    return struct.pack("<Q", v)


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return u64(len(raw)) + raw


def header(n_tensors, n_kv, version=3):
    return b"GGUF" + u32(version) + u64(n_tensors) + u64(n_kv)


def key(name, kind):
    return text(name) + u32(kind)


def kv_u32(name, v):
    return key(name, U32) + u32(v)


def kv_text(name, v):
    return key(name, STRING) + text(v)


def array(name, elem, n):
    return key(name, ARRAY) + u32(elem) + u64(n)


def tensor(name, dims, kind=F32, offset=0):
    return text(name) + u32(len(dims)) + b"".join(u64(d) for d in dims) + u32(kind) + u64(offset)


def padded(raw, n_data=256, align=32):
    return raw + b"\0" * (-len(raw) % align) + b"\0" * n_data


def one_tensor(dims, kind=F32, offset=0, n_data=256):
    return padded(header(1, 0) + tensor("w", dims, kind, offset), n_data)


def two_tensors(a, at_a, b, at_b, n_data=256):
    return padded(header(2, 0) + tensor(a, [8, 2], F32, at_a) + tensor(b, [8, 2], F32, at_b), n_data)
