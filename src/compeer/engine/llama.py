"""llama.cpp in this process: the few calls of its C interface that an engine needs.

The package `xllamacpp` brings llama.cpp as one shared library, built for x86_64 and aarch64, with the functions of
`llama.h` in it. Its own Python face is a server; the loop that writes rows (`batching.py`) wants less and more than
that: tokens in, logits out, keys and values saved and put back. So the library is called directly. Two structures are
handed over by value whose layout may change from version to version: they are filled by the library's own defaults,
which must be those we know, and what came of them is asked for afterwards; else the version is refused by name.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import struct
import tomllib
from collections import deque
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compeer.errors import InputError

PACKAGE = "xllamacpp"
_GPU_LAYERS, _LOADING, _READ_WHOLE = 16, 24, 0
_WIDTH, _BATCH, _SMALL_BATCH, _SEQUENCES, _THREADS, _READING_THREADS, _FLASH = 0, 4, 8, 12, 28, 32, 52
_KEYS, _VALUES, _FLOAT32, _FLOAT16 = 104, 108, 0, 1
_SMALL = 64 << 20  # models of fewer bytes compute attention in float32: that costs little there, and nothing is rounded
BATCH = 256  # tokens that are computed in one call, at most
Ids = Sequence[int]


class _Settings(ctypes.Structure):
    """A structure of settings by value: more room than any version needs."""

    _fields_ = (("raw", ctypes.c_uint8 * 512),)

    def get(self, offset: int, kind: str) -> Any:
        return struct.unpack_from(f"<{kind}", bytes(self.raw), offset)[0]

    def set(self, offset: int, kind: str, value: Any) -> None:
        struct.pack_into(f"<{kind}", self.raw, offset, value)


class _Batch(ctypes.Structure):
    _pointers = ("tokens", "embeddings", "positions", "owners", "sequences", "wanted")
    _fields_ = (("count", ctypes.c_int32), *zip(_pointers, [ctypes.c_void_p] * 6, strict=True))


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_TYPES = {"none": None, "log": _Log, "settings": _Settings, "batch": _Batch}
_INTERFACE: dict[str, dict[str, Any]] = tomllib.loads(files("compeer.engine").joinpath("llama.toml").read_text("utf-8"))

_MISSING = "there is no such file"
_complaints: deque[str] = deque(maxlen=8)  # the library's last ones; they are quoted only where loading fails


@_Log  # type: ignore[untyped-decorator]
def _listen(level: int, text: bytes, _: Any) -> None:
    if level >= 3 and text.strip():
        _complaints.append(text.decode("utf-8", "replace").strip())


def version() -> str | None:
    """The version of llama.cpp's package; None where it is not installed."""
    return next((found.version for found in importlib.metadata.distributions(name=PACKAGE)), None)


@cache
def _library() -> Any:
    """The library, its functions declared and its layout checked."""
    do = "Install it with: pip install xllamacpp==2026.10.11549"
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    paths = [path for folder in folders for path in sorted(Path(folder).glob("xllamacpp*.so"))]
    if not paths:
        raise InputError("llama.cpp, which runs models on a CPU, is not installed.", do=do)
    try:
        import torch  # noqa: F401  (brings libgomp, which the library wants and does not bring)

        found = ctypes.CDLL(str(paths[0]))
        for name, kinds in _INTERFACE["functions"].items():
            function = getattr(found, name)
            types = (_TYPES[kind] if kind in _TYPES else getattr(ctypes, f"c_{kind}") for kind in kinds)
            function.restype, *function.argtypes = types
    except OSError as error:
        do = "It needs libgomp1, a package of every Linux."
        raise InputError(f"llama.cpp cannot be loaded: {error}", file=paths[0], do=do) from error
    except AttributeError as error:
        raise InputError(f"this version of llama.cpp is not known: {error}", file=paths[0], do=do) from error
    for one in ("model", "context"):
        defaults, known = getattr(found, f"llama_{one}_default_params")(), _INTERFACE[f"{one}_defaults"]
        if any(defaults.get(int(offset), kind) != value for offset, (kind, value) in known.items()):
            raise InputError(f"this version of llama.cpp ({version()}) has other settings.", file=paths[0], do=do)
    found.llama_log_set(_listen, None)
    found.llama_backend_init()
    return found


class Llama:
    """A model file and room for `sequences` sequences of up to `width` tokens. For one thread at a time."""

    block = 32  # prompts are read in blocks of so many tokens: larger ones are hardly faster, and leave more to be read

    def __init__(self, path: Path, sequences: int, width: int, threads: int | None = None) -> None:
        self._lib = lib = _library()
        self.path, self.sequences = path, sequences
        self.mark = f"llama.cpp {version()}"  # changes with everything but the files that keys and values depend on
        settings = lib.llama_model_default_params()
        settings.set(_GPU_LAYERS, "i", 0)
        settings.set(_LOADING, "i", _READ_WHOLE)  # most matrices are laid out anew: a mapped file would be held twice
        _complaints.clear()
        self._model = lib.llama_model_load_from_file(os.fsencode(path), settings) if path.is_file() else None
        if not self._model:
            raise InputError(f"llama.cpp cannot load it: {next(iter(_complaints), _MISSING)}", file=path)
        self.width = min(width, int(lib.llama_model_n_ctx_train(self._model)))
        given = os.environ.get("OMP_NUM_THREADS", "")
        threads = threads or (int(given) if given.isdigit() else 0) or len(os.sched_getaffinity(0))
        settings = lib.llama_context_default_params()
        small = path.stat().st_size < _SMALL
        cells = _FLOAT32 if small else _FLOAT16
        wanted = {
            **{_KEYS: cells, _VALUES: cells},
            **{_WIDTH: self.width * sequences, _BATCH: BATCH, _SMALL_BATCH: BATCH},
            **{_SEQUENCES: sequences, _THREADS: threads, _READING_THREADS: threads, _FLASH: int(not small)},
        }
        for offset, value in wanted.items():
            settings.set(offset, "i", value)
        self._context = lib.llama_init_from_model(self._model, settings)
        if not self._context:
            why = next(iter(_complaints), "no memory")
            raise InputError(f"llama.cpp has no room for {sequences} x {self.width} tokens: {why}", file=path)
        taken = [read(self._context) for read in (lib.llama_n_seq_max, lib.llama_n_batch, lib.llama_n_threads)]
        if taken != [sequences, BATCH, threads] or lib.llama_n_ctx_seq(self._context) < self.width:
            raise InputError(f"this version of llama.cpp ({version()}) does not take its settings.", file=path)
        self._memory = lib.llama_get_memory(self._context)
        self.vocabulary = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        self._adapters: dict[Path, int] = {}
        self._used: Path | None = None

    def close(self) -> None:
        if self._model:
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._model = self._context = None

    def use(self, adapter: Path | None) -> None:
        """Computes with these adapters from now on, or without any; a file is loaded once."""
        if adapter == self._used:
            return
        if adapter is not None and adapter not in self._adapters:
            _complaints.clear()
            loaded = self._lib.llama_adapter_lora_init(self._model, os.fsencode(adapter))
            if not loaded:
                why = next(iter(_complaints), _MISSING)
                raise InputError(f"these adapters do not fit {self.path.name}: {why}", file=adapter)
            self._adapters[adapter] = loaded
        given = [self._adapters[adapter]] if adapter is not None else []
        pointers, scales = (ctypes.c_void_p * len(given))(*given), (ctypes.c_float * len(given))(*[1.0] * len(given))
        if self._lib.llama_set_adapters_lora(self._context, pointers, len(given), scales):
            raise RuntimeError("llama.cpp refuses the adapters")
        self._used = adapter

    def decode(self, sequences: Ids, positions: Ids, tokens: Ids, wanted: Sequence[bool]) -> npt.NDArray[np.float32]:
        """Computes tokens, at most `BATCH` of them; the logits after those that are wanted, in their order."""
        count = len(tokens)
        ids, where, own = (np.asarray(one, dtype=np.int32) for one in (tokens, positions, sequences))
        owners, outputs = np.ones(count, dtype=np.int32), np.asarray(wanted, dtype=np.int8)
        pointers = own.ctypes.data + 4 * np.arange(count, dtype=np.uintp)
        rest = [one.ctypes.data for one in (where, owners, pointers, outputs)]
        batch = _Batch(count, ids.ctypes.data, None, *rest)
        if code := self._lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama.cpp could not compute {count} tokens (code {code})")
        found = np.empty((int(outputs.sum()), self.vocabulary), dtype=np.float32)
        for row, index in enumerate(np.flatnonzero(outputs)):
            address = self._lib.llama_get_logits_ith(self._context, int(index))
            ctypes.memmove(found[row].ctypes.data, address, found.itemsize * self.vocabulary)
        return found

    def cut(self, sequence: int, length: int) -> None:
        """Forgets what a sequence holds after so many tokens."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1)

    def clear(self) -> None:
        self._lib.llama_memory_clear(self._memory, True)

    def state(self, sequence: int) -> bytes:
        """The keys and values of a sequence, to be put back later, or elsewhere."""
        size = self._lib.llama_state_seq_get_size(self._context, sequence)
        buffer = (ctypes.c_uint8 * size)()
        written = self._lib.llama_state_seq_get_data(self._context, buffer, size, sequence)
        return bytes(memoryview(buffer)[:written])

    def restore(self, sequence: int, state: bytes) -> bool:
        """Puts keys and values into a sequence instead of its own; False where they do not fit."""
        self.cut(sequence, 0)
        return bool(self._lib.llama_state_seq_set_data(self._context, state, len(state), sequence))
