"""A valid GGUF model of a few kilobytes with random weights: llama.cpp without a download."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

CONTEXT_TOKENS = 512
WIDTH, HEADS, HIDDEN = 32, 2, 64
ALIGNMENT = 32


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(key: str, value: object) -> bytes:
    head = _string(key)
    if isinstance(value, str):
        return head + struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return head + struct.pack("<I?", 7, value)
    if isinstance(value, np.uint16):
        return head + struct.pack("<IH", 2, value)
    if isinstance(value, np.int32):
        return head + struct.pack("<Ii", 5, value)
    if isinstance(value, int):
        return head + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return head + struct.pack("<If", 6, value)
    assert isinstance(value, list)
    kind, pack = {
        str: (8, _string),
        float: (6, lambda v: struct.pack("<f", v)),
        int: (5, lambda v: struct.pack("<i", v)),
    }[type(value[0])]
    return head + struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(pack, value))


TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write_tiny_gguf(
    path: Path,
    *,
    chat: bool = True,
    architecture: str = "llama",
    template: str = TEMPLATE,
) -> Path:
    """Write a one-layer llama whose tokens are bytes and printable ASCII characters."""
    characters = ["▁", *(chr(c) for c in range(33, 127))]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *characters]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(characters)
    metadata: dict[str, object] = {
        "general.architecture": architecture,
        "general.name": "tiny",
        f"{architecture}.context_length": CONTEXT_TOKENS,
        f"{architecture}.embedding_length": WIDTH,
        f"{architecture}.block_count": 1,
        f"{architecture}.feed_forward_length": HIDDEN,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.dimension_count": WIDTH // HEADS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }
    if chat:
        metadata["tokenizer.chat_template"] = template
    shapes = {
        "token_embd.weight": (len(tokens), WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (len(tokens), WIDTH),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (WIDTH, WIDTH),
        "blk.0.attn_v.weight": (WIDTH, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_up.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, HIDDEN),
    }
    rng = np.random.default_rng(0)
    tensors = [(n, rng.normal(0.0, 0.3, shape).astype("<f4")) for n, shape in shapes.items()]
    return _write(path, metadata, tensors)


def _write(path: Path, metadata: dict[str, object], tensors: list[tuple[str, np.ndarray]]) -> Path:
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(_entry(k, v) for k, v in metadata.items())
    data = b""
    for name, weights in tensors:
        header += _string(name) + struct.pack("<I", weights.ndim)
        header += b"".join(struct.pack("<Q", size) for size in reversed(weights.shape))
        header += struct.pack("<IQ", 0, len(data))
        data += weights.tobytes()
        data += b"\0" * (-len(data) % ALIGNMENT)
    header += b"\0" * (-len(header) % ALIGNMENT)
    path.write_bytes(header + data)
    return path
