"""T5's relative position bias (Raffel et al. 2020): a learned scalar per head and bucket of distances."""

import math

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionBias
from pe_experiments.encodings.tensors import at_least_float32, in_float64, require_whole


def distance_bucket(relative_positions: Tensor, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """Return the bucket, 0 .. num_buckets - 1, of each relative position (key minus query, int64, any shape).

    In each direction the first half of the buckets hold one distance each, the others logarithmically growing
    ranges up to ``max_distance``; the last one also holds all larger distances. Without a causal mask the
    upper half is for keys to the right; under one they count as distance 0.
    """
    side_buckets = num_buckets if causal else num_buckets // 2
    exact_buckets = side_buckets // 2
    distance = (-relative_positions).clamp(min=0) if causal else relative_positions.abs()
    log_ratio = torch.log(in_float64(distance.clamp(min=1)) / exact_buckets)
    log_share = log_ratio / math.log(max_distance / exact_buckets)
    steps = (log_share * (side_buckets - exact_buckets)).floor().long().to(distance.device)
    log_bucket = (exact_buckets + steps).clamp(max=side_buckets - 1)
    bucket = torch.where(distance < exact_buckets, distance, log_bucket)
    return bucket if causal else bucket + side_buckets * (relative_positions > 0)


class T5Bias(PositionBias):
    """A learned bias per head and bucket of distances on the logit of query i and key j.

    As with all encodings here, q . k is divided by sqrt(head_dim), which T5 itself omits.

    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1, and its released code; one table for all
    layers. Parameters: ``num_buckets * num_heads``, starting at 0. Beyond training: far keys share the last
    bucket, which must have been trained. With the paper's ``max_distance`` of 128, a model trained on 40
    tokens meets untrained buckets from distance 46 on; the defaults therefore follow the training length.

    Args:
        num_buckets: a multiple of 2 in a decoder, of 4 in an encoder; None means 32, or fewer where training
            has fewer distances.
        max_distance: distance from which all keys share a bucket, larger than the distances that have a
            bucket each; None means ``original_length``.

    Raises:
        NotApplicable: when applied to fractional positions.
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, num_buckets: int | None = None, max_distance: int | None = None):
        super().__init__(shape)
        sides = 1 if shape.causal else 2
        if num_buckets is None:
            num_buckets = min(32, 2 * sides * max(1, shape.original_length // 2))
        if num_buckets < 2 * sides or num_buckets % (2 * sides):
            raise ValueError(f"num_buckets={num_buckets} must be a positive multiple of {2 * sides}")
        exact_buckets = num_buckets // sides // 2
        self.num_buckets = num_buckets
        default = max(shape.original_length, exact_buckets + 1)
        self.max_distance = default if max_distance is None else max_distance
        if self.max_distance <= exact_buckets:
            raise ValueError(
                f"max_distance={max_distance} must be above {exact_buckets}: with num_buckets={num_buckets}, "
                f"so many distances have a bucket each"
            )
        self.table = nn.Parameter(torch.zeros(num_buckets, shape.num_heads))

    def _bias(self, at: AttentionContext) -> Tensor:
        require_whole(at.q_positions_BT, "T5 has no bucket")
        bucket_BTS = distance_bucket(
            at.relative_positions_BTS, self.num_buckets, self.max_distance, self.shape.causal
        )
        return at_least_float32(self.table)[bucket_BTS].permute(0, 3, 1, 2)
