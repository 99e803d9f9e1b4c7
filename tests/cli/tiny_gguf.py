"""tiny_gguf.py - reading where things lie in a GGUF, and writing small ones, for tests that damage files.

SPDX-License-Identifier: MIT
"""
import struct

F32, I32, BF16 = 0, 26, 30
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


class Reader:
    """Keys with the offset of their value, tensors with (dims, type, absolute offset, offset of the record)."""

    def __init__(self, data):
        self.data, self.at = data, 4
        assert data[:4] == b"GGUF"
        self.version, n_tensors, n_kv = self.get("I"), self.get("Q"), self.get("Q")
        self.kv, self.value_at, self.tensors = {}, {}, {}
        for _ in range(n_kv):
            key, kind = self.text(), self.get("I")
            self.value_at[key] = self.at
            self.kv[key] = self.value(kind)
        for _ in range(n_tensors):
            record = self.at
            name = self.text()
            dims = [self.get("Q") for _ in range(self.get("I"))]
            self.tensors[name] = [dims, self.get("I"), self.get("Q"), record]
        align = self.kv.get("general.alignment", 32)
        start = (self.at + align - 1) // align * align
        for t in self.tensors.values():
            t[2] += start

    def get(self, fmt):
        v = struct.unpack_from("<" + fmt, self.data, self.at)[0]
        self.at += struct.calcsize(fmt)
        return v

    def text(self):
        n = self.get("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, n = self.get("I"), self.get("Q")
            return [self.value(kind) for _ in range(n)]
        return self.get(FORMATS[kind])


def read(path):
    with open(path, "rb") as f:
        return Reader(f.read())


def packed(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def write(kv, tensors):
    """kv: {key: int | str}; tensors: [(name, dims, type, bytes)]. Returns the file's bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(kv))
    for key, value in kv.items():
        head += packed(key)
        head += struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<I", 8) + packed(value)
    body = b""
    for name, dims, kind, raw in tensors:
        head += packed(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", kind, len(body))
        body += raw + b"\0" * (-len(raw) % 32)
    return head + b"\0" * (-len(head) % 32) + body
