"""What can be known of the settings before anything starts: files that are not there, limits that cannot be kept.

Must not know: processes, how the model is computed.

The engine's processes look at the same things again, since only they can know all; here a mistake costs no start.
"""

import os
import re
from typing import Final

from layered_llm.formats.untrusted_files import is_directory, is_regular
from layered_llm.service.model.checkpoint import Checkpoint, CheckpointError, is_on_hub, resolve
from layered_llm.service.settings.settings import Settings, SettingsError, flag
from layered_llm.service.settings.settings_fields import user_path

_ORIGIN: Final = re.compile(r"\*|[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\s,]+)(:\d{1,5})?")
_HOST: Final = re.compile(r"\*|\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\s,]+")


def check_before_start(settings: Settings) -> None:
    """Raises SettingsError, which names the flag and the limit."""
    _check_pairs(settings)
    _check_pages(settings)
    _check_trace_file(settings)
    if settings.chat_template is not None and not is_regular(user_path(settings.chat_template)):
        raise SettingsError(f"--chat-template {settings.chat_template}: there is no such file")
    checkpoint = _local_checkpoint(settings)
    if checkpoint is not None and not (settings.max_seq_len_override is None and settings.num_pages is None):
        _check_sizes(settings, checkpoint)


def _check_pairs(settings: Settings) -> None:
    if (settings.certfile is None) != (settings.keyfile is None):
        raise SettingsError("--certfile and --keyfile belong together: give both, or neither")
    if settings.max_streams_per_key is not None and not (settings.api_key or settings.api_key_file):
        raise SettingsError("--max-streams-per-key needs --api-key or --api-key-file; --max-streams bounds all together")
    if settings.share_prefix_cache and not (settings.api_key or settings.api_key_file):
        raise SettingsError("--share-prefix-cache needs --api-key or --api-key-file; without keys everybody shares")
    _check_body_limits(settings)
    wishes = {"--deterministic": settings.deterministic, "--kv-dtype float16": settings.kv_dtype == "float16"}
    for wish, is_wished in wishes.items():
        if is_wished and settings.kernels == "torch" and settings.device == "cpu":
            raise SettingsError(f"{wish} needs the generated kernels, and --kernels torch forbids them")


def _check_body_limits(settings: Settings) -> None:
    """Raises SettingsError where a body that is allowed could never be taken."""
    for name in ("max_unfinished_body_bytes", "max_unfinished_body_bytes_per_client"):
        limit = getattr(settings, name)
        if limit is not None and limit < settings.max_body_bytes:
            raise SettingsError(f"{flag(name)} must be at least --max-body-bytes, {settings.max_body_bytes}, got {limit}")


def _check_pages(settings: Settings) -> None:
    for origin in settings.allowed_origin:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"--allowed-origin must be * or as browsers send it, https://ui.example.com:8080; got {origin!r}"
            )
    for host in settings.allowed_host:
        if not _HOST.fullmatch(host):
            raise SettingsError(
                f"--allowed-host must be * or a name or address without a port, as llm.example.com; got {host!r}"
            )


def _check_trace_file(settings: Settings) -> None:
    if settings.trace_file is None:
        return
    path = user_path(settings.trace_file)
    if is_directory(path):
        raise SettingsError(f"--trace-file {settings.trace_file}: this is a directory")
    if not is_directory(path.parent):
        raise SettingsError(f"--trace-file {settings.trace_file}: there is no directory {path.parent}")
    if os.path.lexists(path) and not is_regular(path) and not path.is_char_device():
        raise SettingsError(f"--trace-file {settings.trace_file}: this is no regular file")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(f"--trace-file {settings.trace_file}: no file can be made in {path.parent}")


def _local_checkpoint(settings: Settings) -> Checkpoint | None:
    """None for a hub id, which only the supervisor asks for."""
    model = settings.model
    if model is not None and is_on_hub(model):
        return None
    try:
        return resolve(model)
    except CheckpointError as error:
        raise SettingsError(str(error)) from error


def _check_sizes(settings: Settings, checkpoint: Checkpoint) -> None:
    """A configuration that cannot be read is the runtime's to refuse. The weights take memory as well, how much it knows."""
    # Not needed by most starts, and slow to import.
    from layered_llm.runtime.cpu.pool_size import bytes_of_page  # noqa: PLC0415 - as said above
    from layered_llm.runtime.cpu.process_limits import available_bytes  # noqa: PLC0415 - as said above
    from layered_llm.runtime.device.device import DeviceError  # noqa: PLC0415 - as said above
    from layered_llm.runtime.models.model_files import read_model, read_raw_config  # noqa: PLC0415 - as said above

    try:
        own = read_raw_config(checkpoint.path).get("max_position_embeddings")
        config = None if settings.device == "scripted" else read_model(checkpoint.path).config
    except DeviceError:
        return
    asked = settings.max_seq_len_override
    if asked is not None and isinstance(own, int) and asked > own:
        raise SettingsError(f"--max-seq-len-override (--max-model-len) must be at most the model's {own} tokens, got {asked}")
    free_bytes = available_bytes()
    if settings.num_pages is not None and config is not None and free_bytes is not None:
        fitting = free_bytes // bytes_of_page(config, settings.page_size, settings.kv_dtype)
        if settings.num_pages > fitting:
            raise SettingsError(
                f"--num-pages must be at most {fitting}, less what the weights take: {free_bytes / 2**30:.2f} GiB of memory "
                f"are free; got {settings.num_pages}"
            )
