"""Log probabilities of the tokens that a step sampled, for the rows that want them.

Must not know: how a token is drawn, slots.

They are taken from the logits as the model computed them, so before the sampler changes those. The sampled token's own entry
and the one that it may have among the likeliest are the same number, to the bit.
"""

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.messages.logprobs import LogprobColumns
from layered_llm.runtime.sample_row import SampleRow
from layered_llm.runtime.slots import Int32s


@attrs.frozen(eq=False)
class RawLogprobs:
    """What the rows that want any are told about."""

    _places: Sequence[int]
    _rows: Sequence[SampleRow]
    _logprobs: torch.Tensor
    """fp32 [places, vocabulary]."""

    def columns(self, token_ids: Int32s) -> LogprobColumns:
        """Of all rows, which sampled `token_ids`."""
        chosen = torch.from_numpy(token_ids[self._places].astype(np.int64))[:, None]
        counts = [min(self._rows[place].sampling.logprobs or 0, self._logprobs.shape[1]) for place in self._places]
        top = self._logprobs.topk(max(counts))
        ids = torch.cat((chosen, top.indices), dim=1).numpy().astype(np.int32)
        values = torch.cat((self._logprobs.gather(1, chosen), top.values), dim=1).numpy()
        widths = dict(zip(self._places, (count + 1 for count in counts), strict=True))
        is_entry = np.arange(ids.shape[1]) < np.array(list(widths.values()))[:, None]
        return LogprobColumns(
            counts=pack_i32(widths.get(place, 0) for place in range(len(self._rows))),
            token_ids=ids[is_entry].tobytes(),
            logprobs=values[is_entry].tobytes(),
        )


def raw_logprobs(logits: torch.Tensor, rows: Sequence[SampleRow]) -> RawLogprobs | None:
    """Of `logits` (fp32 [rows, vocabulary]), which are not changed; None where no row wants any."""
    places = [place for place, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not places:
        return None
    return RawLogprobs(places, rows, logits[places].log_softmax(dim=-1))
