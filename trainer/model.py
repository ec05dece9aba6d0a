"""A small GPT: pre-norm, causal, byte-level by default."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name


class GPT(nn.Module):
    """Decoder-only transformer with learned positions and an output layer tied to the embedding.

    Shapes below: B = batch, T = tokens (at most ``context``), V = ``vocab_size``, D = ``width``.

    Args:
        vocab_size: Number of token ids, >= 1.
        context: Longest sequence, >= 1.
        layers: Number of blocks, >= 1.
        heads: Attention heads; divides ``width``.
        width: Size of the residual stream.
        dropout: Probability of dropping an activation, 0..1.

    Raises:
        ValueError: ``width`` is not a multiple of ``heads``.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners (GPT-2), 2019.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 256,
        context: int = 128,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(
                f"model.width must be a multiple of model.heads, got width {width}, heads {heads}"
            )
        self.context = context
        self.layers = layers
        self.width = width
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.token_embedding.weight
        self.apply(self._init_weights)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Predict the next token at each position.

        Args:
            tokens: Token ids, int64 (B, T).
            targets: Token ids to predict, int64 (B, T); None = no loss.

        Returns:
            Logits (B, T, V), and the mean cross entropy in nats (a scalar) or None.

        Raises:
            ValueError: T is longer than the context.
        """
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"sequence of {length} tokens is longer than the context of {self.context}")
        positions = torch.arange(length, device=tokens.device)
        stream = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))  # (B, T, D)
        for block in self.blocks:
            stream = block(stream)
        logits: Tensor = self.head(self.norm(stream))  # (B, T, V)
        if targets is None:
            return logits, None
        # In float32 whatever autocast chose: the log-sum-exp loses too much in half precision.
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def flops_per_token(self) -> int:
        """Return the floating point operations of one token's forward and backward pass.

        ``6 * N + 12 * layers * width * context`` with N the parameters that are multiplied (not the
        positions).

        Source: Chowdhery et al., PaLM, appendix B, https://arxiv.org/abs/2204.02311.
        """
        multiplied = sum(p.numel() for p in self.parameters()) - self.position_embedding.weight.numel()
        return 6 * multiplied + 12 * self.layers * self.width * self.context

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Block):
            # Each block adds twice to the stream; scaled down so that its variance does not grow with depth.
            for layer in (module.attention.out, module.mlp_out):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * self.layers))


class Block(nn.Module):
    """Pre-norm transformer block: attention, then a four times wider MLP, each added to the stream."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """Return the stream (B, T, D) with this block's additions."""
        stream = stream + self.dropout(self.attention(self.attention_norm(stream)))
        hidden = F.gelu(self.mlp_in(self.mlp_norm(stream)))
        out: Tensor = stream + self.dropout(self.mlp_out(hidden))
        return out


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a position sees itself and what came before."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )  # (B, heads, T, D / heads)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out
