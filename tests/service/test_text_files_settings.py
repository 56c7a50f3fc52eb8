import json
from pathlib import Path

import pytest

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.sampling import NO_DEFAULTS, SamplingDefaults
from layered_llm.service.model.checkpoint import DEFAULT_MODEL_SAMPLING, default_gguf
from layered_llm.service.settings.settings import Settings
from layered_llm.service.workers.text import read_files
from layered_llm.text.checkpoint_text import UnreadableCheckpoint
from support.byte_checkpoint import write_byte_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = write_byte_checkpoint(tmp_path / "model")
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": 5}))
    return directory


@pytest.mark.parametrize(("setting", "defaults"), [("auto", SamplingDefaults(temperature=0.6)), ("none", NO_DEFAULTS)])
def test_the_models_sampling_can_be_left_aside_and_its_end_tokens_not(
    setting: str, defaults: SamplingDefaults, checkpoint: Path
) -> None:
    files = read_files(checkpoint, Settings(generation_config=setting))
    assert (defaults, True) == (files.defaults, 5 in files.eos_ids)


def test_a_template_of_ones_own_stands_for_the_models(checkpoint: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("own {{ messages[0].content }}")
    files = read_files(checkpoint, Settings(chat_template=str(own)))
    assert files.template is not None
    assert "own hi" == files.template.render([ChatMessage(role="user", content="hi")])


def test_a_template_that_is_not_there_is_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableCheckpoint, match=r"--chat-template .*none\.jinja: there is no such file"):
        read_files(checkpoint, Settings(chat_template=str(tmp_path / "none.jinja")))


@pytest.mark.parametrize(("setting", "expected"), [("auto", DEFAULT_MODEL_SAMPLING), ("none", NO_DEFAULTS)])
def test_the_default_model_is_sampled_as_its_authors_advise(setting: str, expected: SamplingDefaults) -> None:
    assert expected == read_files(default_gguf(), Settings(generation_config=setting)).defaults


def test_the_same_file_under_its_own_name_has_only_what_it_says() -> None:
    assert NO_DEFAULTS == read_files(default_gguf(), Settings(model=str(default_gguf()))).defaults
