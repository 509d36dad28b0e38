#include "emulator/tensor_map.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"

namespace flashwright::emulator {
namespace {

constexpr std::uint64_t kMark = 0x70616d2d61746d21;  // tells maps from other bytes
constexpr int kPieceBytes = 16;

struct Encoded {
  std::uint64_t mark;
  TensorMapSpec spec;
};
static_assert(sizeof(Encoded) <= kTensorMapBytes);

// Which elements of a piece lie within a row of the tensor.
void clip(Piece& piece, std::int64_t x, std::int64_t extent, int element_bytes, bool row_inside) {
  const std::int64_t count = kPieceBytes / element_bytes;
  const std::int64_t first = std::clamp<std::int64_t>(-x, 0, count),
                     last = std::clamp<std::int64_t>(extent - x, first, count);
  piece.skip = static_cast<std::uint8_t>(first * element_bytes);
  piece.valid = row_inside ? static_cast<std::uint8_t>((last - first) * element_bytes) : 0;
}

}  // namespace

void encode_tensor_map(const TensorMapSpec& spec, void* map) {
  if (const std::string fault = tensor_map_fault(spec); !fault.empty())
    throw Error(Status::bad_argument, "tensor map: " + fault);
  const Encoded encoded{kMark, spec};
  std::memset(map, 0, kTensorMapBytes);
  std::memcpy(map, &encoded, sizeof encoded);
}

bool decode_tensor_map(const void* map, TensorMapSpec& spec) {
  Encoded encoded;
  std::memcpy(&encoded, map, sizeof encoded);
  if (encoded.mark != kMark) return false;
  spec = encoded.spec;
  return true;
}

std::vector<Piece> box_pieces(const TensorMapSpec& spec, const int* at) {
  const int element = info(spec.dtype).bytes, row_bytes = spec.box[0] * element;
  std::int64_t rows = 1;
  for (int i = 1; i < spec.rank; ++i) rows *= spec.box[static_cast<std::size_t>(i)];
  std::vector<Piece> pieces;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t rest = row, offset = 0;
    bool inside = true;
    for (int i = 1; i < spec.rank; ++i) {
      const auto d = static_cast<std::size_t>(i);
      const std::int64_t index = at[i] + rest % spec.box[d];
      rest /= spec.box[d];
      inside = inside && index >= 0 && index < spec.shape[d];
      offset += index * spec.stride_bytes[d - 1];
    }
    for (int byte = 0; byte < row_bytes; byte += kPieceBytes) {
      Piece piece;
      const std::int64_t x = at[0] + byte / element;
      clip(piece, x, spec.shape[0], element, inside);
      piece.global = static_cast<char*>(spec.base) + offset + x * element + piece.skip;
      piece.place = static_cast<unsigned>(row * row_bytes + byte);
      pieces.push_back(piece);
    }
  }
  return pieces;
}

std::vector<Piece> row_pieces(const void* global, int bytes) {
  std::vector<Piece> pieces;
  for (int byte = 0; byte < bytes; byte += kPieceBytes) {
    Piece piece;
    piece.global = static_cast<char*>(const_cast<void*>(global)) + byte;
    piece.place = static_cast<unsigned>(byte);
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace flashwright::emulator
