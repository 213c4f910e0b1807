"""Log-probs of the sampled tokens: the only place where the learner touches a vocabulary.

Shape suffixes: `_B` rows, `_T` padded token positions, `_M` sampled tokens of a micro-batch in row-major order, `_C` one chunk
of them, `_V` vocabulary, `_D` hidden size.
"""

import copy
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from learner.config import LoraConfig
from learner.lora import add_adapters


class Head(nn.Module):
    """The output layer, applied to chunks of hidden states, so that at most `chunk_tokens` rows of logits exist at once.

    It owns the output layer's parameters and calls no submodule: ZeRO-3 gathers them once for its forward and once for its
    backward pass, however many chunks a rank has. A gather a chunk would hang ranks that have different numbers of tokens.
    """

    def __init__(self, linear: nn.Linear, chunk_tokens: int) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.chunk_tokens = chunk_tokens

    def forward(self, hidden_MD: torch.Tensor, target_M: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """`log softmax(logits / temperature)[target]` and the entropy of that softmax, in nats, both (M,) in float32."""
        if hidden_MD.shape[0] <= self.chunk_tokens:
            return self._chunk(hidden_MD, target_M, temperature)
        parts = [
            checkpoint(self._chunk, hidden_CD, target_C, temperature, use_reentrant=False)
            for hidden_CD, target_C in zip(torch.split(hidden_MD, self.chunk_tokens), torch.split(target_M, self.chunk_tokens), strict=True)
        ]
        return torch.cat([logp_C for logp_C, _ in parts]), torch.cat([entropy_C for _, entropy_C in parts])

    def _chunk(self, hidden_CD: torch.Tensor, target_C: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        logits_CV = nn.functional.linear(hidden_CD, self.weight, self.bias).float() / temperature
        logp_CV = logits_CV.log_softmax(dim=-1)
        return logp_CV.gather(1, target_C[:, None]).squeeze(1), -(logp_CV.exp() * logp_CV).sum(dim=-1)


class PolicyModel(nn.Module):
    """A Hugging Face causal language model that returns only what the loss reads.

    `hf_names` maps every parameter's name here to its name in the model that was given; a tied output layer is one parameter
    with one name. The given model is taken apart, not copied. With `value` a linear head, zero at first, reads V(h_t) from the hidden
    state before token t: of the policy's own backbone (`shared`), or of a copy of it as it was given (`separate`). The value's
    parameters are in no model that was given, so `hf_names` does not have them; nor those of the adapters that `lora` adds to the
    backbone, which then are all that is trained beside the value. Raises `InputError` for adapters that the model cannot have.
    """

    def __init__(
        self,
        lm: Any,
        temperature: float = 1.0,
        head_chunk_tokens: int = 4096,
        entropy_gradient: bool = False,
        value: Literal["shared", "separate"] | None = None,
        lora: LoraConfig | None = None,
    ) -> None:
        super().__init__()
        names = {id(parameter): name for name, parameter in lm.named_parameters()}
        self.config = lm.config
        self.backbone = lm.base_model
        self.head = Head(lm.get_output_embeddings(), head_chunk_tokens)
        self.temperature = temperature
        self.entropy_gradient = entropy_gradient
        if lora is not None:
            self.head.requires_grad_(False)
            add_adapters(self.backbone, lora)
        self.hf_names = {name: names[id(parameter)] for name, parameter in self.named_parameters() if id(parameter) in names}
        self.value = value
        if value is not None:
            dtype = self.head.weight.dtype
            self.value_backbone = copy.deepcopy(self.backbone) if value == "separate" else None
            self.value_head = nn.Linear(self.head.weight.shape[1], 1, dtype=dtype)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def forward(
        self, token_ids_BT: torch.Tensor, mask_BT: torch.Tensor, temperature: float | None = None, with_value: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """`logp_M = log pi(token_t | tokens before t)` at every t with mask 1, the entropy of pi there in nats, and V(h_t) if asked for.

        `token_ids_BT` (B, T) rows padded on the right, `mask_BT` (B, T) 1 on sampled tokens, never on t = 0. Returns (M,)
        float32 tensors, rows first, then positions; M may be 0, and then the backward pass still reaches every parameter
        with a zero gradient, so that all ranks run the same collectives.

        No attention mask is passed: attention is causal and padding is on the right, so no token before the padding can see
        it, and what stands at padded positions is never read. That keeps the fused causal attention kernel.
        """
        hidden_BTD = self.backbone(input_ids=token_ids_BT, use_cache=False).last_hidden_state
        row_M, position_M = mask_BT.nonzero(as_tuple=True)
        before = row_M, position_M - 1
        logp_M, entropy_M = self.head(
            hidden_BTD[before], token_ids_BT[row_M, position_M], self.temperature if temperature is None else temperature
        )
        value_M = None
        if with_value:
            if self.value_backbone is not None:
                hidden_BTD = self.value_backbone(input_ids=token_ids_BT, use_cache=False).last_hidden_state
            value_M = self.value_head(hidden_BTD[before]).squeeze(-1).float()
        return logp_M, entropy_M if self.entropy_gradient else entropy_M.detach(), value_M
