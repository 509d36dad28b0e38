#include "api/arguments_c.hpp"

#include <fmt/format.h>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace flashwright {
namespace {

constexpr int kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13;

[[noreturn]] void bad(const char* name, const std::string& given, const std::string& expected) {
  throw Error(Status::bad_argument,
              fmt::format("{}: given {}; expected {}", name, given, expected));
}

TensorView view_of(const char* name, const flashwright_tensor* tensor) {
  if (tensor == nullptr) bad(name, "no tensor", "a tensor");
  TensorView out;
  const auto dtype = [&]() -> DType {
    for (const DType candidate : {DType::fp16, DType::bf16, DType::fp32})
      if (tensor->type_code == info(candidate).dlpack_code &&
          tensor->type_bits == info(candidate).bytes * 8 && tensor->type_lanes == 1)
        return candidate;
    bad(name,
        fmt::format("elements of DLPack code {}, {} bits, {} lanes", tensor->type_code,
                    tensor->type_bits, tensor->type_lanes),
        dtype_names());
  };
  out.dtype = dtype();
  if (tensor->ndim < 1 || tensor->ndim > 4)
    bad(name, fmt::format("rank {}", tensor->ndim),
        "rank 4 (batch, seq, heads, dim); for lse and d_lse rank 3, for alibi_slopes 1 or 2");
  if (tensor->shape == nullptr) bad(name, "no shape", "its extents");
  switch (tensor->device_type) {
    case kDlCpu:
    case kDlCudaHost:
      out.device = BackendKind::cpu;
      break;
    case kDlCuda:
    case kDlCudaManaged:
      out.device = BackendKind::cuda;
      break;
    default:
      bad(name, fmt::format("DLPack device type {}", tensor->device_type), "1 (CPU) or 2 (CUDA)");
  }
  out.device_index = out.device == BackendKind::cpu ? 0 : tensor->device_id;
  out.ndim = tensor->ndim;
  std::int64_t dense = 1;
  for (int i = tensor->ndim - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    out.shape[at] = tensor->shape[i];
    out.stride[at] = tensor->strides != nullptr ? tensor->strides[i] : dense;
    dense *= std::max<std::int64_t>(tensor->shape[i], 1);
  }
  out.data =
      tensor->data == nullptr ? nullptr : static_cast<char*>(tensor->data) + tensor->byte_offset;
  return out;
}

}  // namespace

BlockLists lists_of(const flashwright_blocks& blocks) {
  if (blocks.size != sizeof(flashwright_blocks))
    bad("blocks", fmt::format("size {}", blocks.size),
        fmt::format("{}, of this version", sizeof(flashwright_blocks)));
  BlockLists out;
  out.seq_q = blocks.seq_q;
  out.seq_kv = blocks.seq_kv;
  out.block_q = blocks.block_q;
  out.block_kv = blocks.block_kv;
  out.batch = blocks.batch;
  out.heads = blocks.heads;
  out.full_offsets = blocks.full_offsets;
  out.full_columns = blocks.full_columns;
  out.partial_offsets = blocks.partial_offsets;
  out.partial_columns = blocks.partial_columns;
  out.partial_bits = blocks.partial_bits;
  out.full_query_offsets = blocks.full_query_offsets;
  out.full_query_rows = blocks.full_query_rows;
  out.partial_query_offsets = blocks.partial_query_offsets;
  out.partial_query_rows = blocks.partial_query_rows;
  out.partial_query_places = blocks.partial_query_places;
  return out;
}

namespace {

// What make_blocks hands out: the struct first, so that its address is that of the whole.
struct OwnedBlocks {
  flashwright_blocks view;
  BlockMask mask;
};

}  // namespace

Arguments arguments_of(const flashwright_arguments* args) {
  if (args->size != sizeof(flashwright_arguments))
    bad("arguments", fmt::format("size {}", args->size),
        fmt::format("{}, of this version", sizeof(flashwright_arguments)));
  Arguments out;
  out.q = view_of("q", args->q);
  out.k = view_of("k", args->k);
  out.v = view_of("v", args->v);
  out.o = view_of("o", args->o);
  const auto optional = [](const char* name, const flashwright_tensor* tensor) {
    return tensor == nullptr ? std::nullopt : std::optional(view_of(name, tensor));
  };
  out.lse = optional("lse", args->lse);
  out.d_o = optional("d_o", args->d_o);
  out.d_lse = optional("d_lse", args->d_lse);
  out.dq = optional("dq", args->dq);
  out.dk = optional("dk", args->dk);
  out.dv = optional("dv", args->dv);
  if (args->blocks != nullptr) out.blocks = lists_of(*args->blocks);
  out.alibi_slopes = optional("alibi_slopes", args->alibi_slopes);
  if (args->has_q_position != 0) out.q_position = args->q_position;
  out.seed = args->seed;
  out.offset = args->offset;
  out.rng_state = args->rng_state;
  return out;
}

flashwright_blocks* make_blocks(BlockMask mask) {
  auto* const owned = new OwnedBlocks{{}, std::move(mask)};
  const BlockLists& l = owned->mask.lists;
  owned->view = {sizeof(flashwright_blocks),
                 l.seq_q,
                 l.seq_kv,
                 l.block_q,
                 l.block_kv,
                 l.batch,
                 l.heads,
                 l.full_offsets,
                 l.full_columns,
                 l.partial_offsets,
                 l.partial_columns,
                 l.partial_bits,
                 l.full_query_offsets,
                 l.full_query_rows,
                 l.partial_query_offsets,
                 l.partial_query_rows,
                 l.partial_query_places};
  return &owned->view;
}

void free_blocks(flashwright_blocks* blocks) { delete reinterpret_cast<OwnedBlocks*>(blocks); }

}  // namespace flashwright
