"""The safetensors format in plain Python, for the development tools: no packages needed."""
import json
import struct

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U16": 2, "U8": 1, "BOOL": 1,
         "F8_E4M3": 1}


def read(path):
    """Returns ({name: (dtype, shape, bytes)}, metadata)."""
    blob = open(path, "rb").read()
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8:8 + length])
    metadata = header.pop("__metadata__", {})
    data = memoryview(blob)[8 + length:]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], bytes(data[begin:end]))
    return tensors, metadata


def write(path, tensors, metadata):
    """Tensors by falling element size, then by name; the header padded so that data start at a multiple of 8."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    order = sorted(tensors, key=lambda name: (-SIZES[tensors[name][0]], name))
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            out.write(tensors[name][2])
