"""A text worker's process: tokenizers, templates, detokenization, stop strings.

Must not know: HTTP, tensors, policy.
"""

import gc
import os
from datetime import datetime
from pathlib import Path

import attrs
import trio

from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.supervision import Role
from layered_llm.service.model.checkpoint import DEFAULT_MODEL_FILE, DEFAULT_MODEL_SAMPLING
from layered_llm.service.processes.engine_process import EngineArguments, run_engine_process
from layered_llm.service.processes.processes import give_back_memory
from layered_llm.service.settings.settings import GENERATION_CONFIG_OF_MODEL, Settings
from layered_llm.service.settings.settings_fields import user_path
from layered_llm.service.workers.preparations import TextHelpers, prepare_in_thread
from layered_llm.service.workers.template_renderer import open_renderer
from layered_llm.service.workers.text_worker import TextLinks, TextWorker
from layered_llm.text.checkpoint_text import TextFiles, UnreadableCheckpoint, read_text_files
from layered_llm.text.core import TextCore
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import API_TEXT, ENGINE_SUPERVISOR, TEXT_SCHEDULER, Links
from layered_llm.transport.links import ZmqLinks
from layered_llm.transport.outbox import ENGINE_OUTBOX_MESSAGES, Outbox
from layered_llm.transport.peers import peer_name
from layered_llm.transport.zmq_socket import open_context


async def work_text(links: Links, addresses: LinkAddresses, index: int, files: TextFiles) -> None:
    """Serves until told to stop, with a process for the template."""
    async with open_renderer(files.template) as renderer:
        helpers = TextHelpers(prepare_long=prepare_in_thread, renderer=renderer)
        await serve_text(links, addresses, index, files, helpers)


def read_files(checkpoint: Path, settings: Settings) -> TextFiles:
    """The text side of a checkpoint as the settings want it. Raises UnreadableCheckpoint."""
    template, has_defaults = settings.chat_template, settings.generation_config == GENERATION_CONFIG_OF_MODEL
    files = read_text_files(
        checkpoint,
        clock=datetime.now,
        template_file=None if template is None else user_path(template),
        has_defaults=has_defaults,
    )
    is_default_model = settings.model is None and checkpoint.name == DEFAULT_MODEL_FILE
    return attrs.evolve(files, defaults=DEFAULT_MODEL_SAMPLING) if has_defaults and is_default_model else files


async def serve_text(links: Links, addresses: LinkAddresses, index: int, files: TextFiles, helpers: TextHelpers) -> None:
    """Serves until told to stop."""
    name = peer_name(Role.TEXT, index)

    def make_core(limits: EngineLimits) -> TextCore:
        return TextCore(text_files=files, limits=limits)

    with (
        links.bind(API_TEXT, addresses.text(index)) as apis,
        links.connect(TEXT_SCHEDULER, addresses.scheduler, name) as scheduler,
        links.connect(ENGINE_SUPERVISOR, addresses.supervisor, name) as supervisor,
    ):
        worker = TextWorker(
            index=index,
            pid=os.getpid(),
            links=TextLinks(apis=apis, scheduler=scheduler, supervisor=supervisor),
            to_scheduler=Outbox(ENGINE_OUTBOX_MESSAGES),
            to_supervisor=Outbox(ENGINE_OUTBOX_MESSAGES),
            helpers=helpers,
        )
        await worker.run(make_core)


async def _work(arguments: EngineArguments) -> None:
    with open_context() as context:
        files = read_files(arguments.checkpoint, arguments.settings)
        give_back_memory()
        gc.freeze()  # looking through a vocabulary and all imported code, again and again, would hold up every stream
        await work_text(ZmqLinks(context, context), arguments.addresses, arguments.index, files)


def main() -> None:
    """The process's entry."""
    run_engine_process(Role.TEXT, lambda arguments: trio.run(_work, arguments), expected=(UnreadableCheckpoint,))


if __name__ == "__main__":
    main()
