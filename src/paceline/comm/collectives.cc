#include "paceline/comm/collectives.h"

#include "paceline/base/error.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <type_traits>

namespace paceline {
namespace {

/// Pieces that a ring step is cut into, so that summing one overlaps with moving the next.
constexpr std::size_t ring_piece_bytes = 1 << 20;
/// Pieces that are asked for ahead. Their buffer stays small, or its pages would cost more than the summing.
constexpr std::size_t ring_window = 4;

template <typename T>
void reduce_typed(T* data, const T* other, std::int64_t count, ReduceOp op) {
  if (op == ReduceOp::sum) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<T>(data[i] + other[i]);
  } else if constexpr (std::is_floating_point_v<T>) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (other[i] > data[i] || std::isnan(other[i])) data[i] = other[i];
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) data[i] = std::max(data[i], other[i]);
  }
}

std::byte* at_offset(void* data, std::size_t bytes) { return static_cast<std::byte*>(data) + bytes; }

std::unique_ptr<Work> start_send(const Collective& call, const void* data, std::size_t bytes, int to) {
  return call.transport.send_start(data, bytes, call.world_ranks[to], call.tag);
}

std::unique_ptr<Work> start_receive(const Collective& call, void* data, std::size_t bytes, int from) {
  return call.transport.receive_start(data, bytes, call.world_ranks[from], call.tag);
}

/// The elements of part `index` when `count` is cut into `parts` parts.
struct Range {
  std::int64_t begin;
  std::int64_t end;
};

Range part_of(std::int64_t count, int parts, int index) {
  return {count * index / parts, count * (index + 1) / parts};
}

/// Around the ring, so that rank r ends with the reduction of part r. Pieces are handed on as soon as they are summed.
void ring_reduce(const Collective& call, void* data, std::int64_t count, at::ScalarType type, ReduceOp op) {
  const int n = call.size();
  const int next = (call.rank + 1) % n;
  const int previous = (call.rank + n - 1) % n;
  const std::size_t width = reducible_bytes(type);
  const std::int64_t piece = static_cast<std::int64_t>(ring_piece_bytes / width);
  const std::int64_t largest = (count + n - 1) / n;
  const std::int64_t slot_elements = std::min(piece, largest);
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(ring_window * slot_elements * width);
  const auto slot_of = [&](std::int64_t index) { return scratch.get() + index % ring_window * slot_elements * width; };

  std::vector<std::unique_ptr<Work>> sends;
  const auto send_piece = [&](std::int64_t begin, std::int64_t end) {
    sends.push_back(start_send(call, at_offset(data, begin * width), (end - begin) * width, next));
  };
  // In step s this rank receives and reduces part rank - 2 - s, having sent part rank - 1 - s.
  const Range first = part_of(count, n, (call.rank + n - 1) % n);
  for (int step = 0; step < n - 1; ++step) {
    const Range range = part_of(count, n, (call.rank + 2 * n - 2 - step) % n);
    const std::int64_t pieces = (range.end - range.begin + piece - 1) / piece;
    const auto piece_of = [&](std::int64_t index) {
      const std::int64_t begin = range.begin + index * piece;
      return Range{begin, std::min(begin + piece, range.end)};
    };
    std::vector<std::unique_ptr<Work>> receives;
    const auto receive_next = [&] {
      const std::int64_t index = static_cast<std::int64_t>(receives.size());
      if (index == pieces) return;
      const Range next_piece = piece_of(index);
      receives.push_back(start_receive(call, slot_of(index), (next_piece.end - next_piece.begin) * width, previous));
    };
    for (std::size_t i = 0; i < ring_window; ++i) receive_next();
    if (step == 0) {
      for (std::int64_t begin = first.begin; begin < first.end; begin += piece) {
        send_piece(begin, std::min(begin + piece, first.end));
      }
    }
    for (std::int64_t index = 0; index < pieces; ++index) {
      const auto [begin, end] = piece_of(index);
      receives[index]->wait();
      reduce_into(at_offset(data, begin * width), slot_of(index), end - begin, type, op);
      if (step + 1 < n - 1) send_piece(begin, end);
      receive_next();
    }
  }
  for (auto& send : sends) send->wait();
}

}  // namespace

std::size_t reducible_bytes(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Double:
    case at::ScalarType::Long:
      return 8;
    case at::ScalarType::Float:
    case at::ScalarType::Int:
      return 4;
    case at::ScalarType::Byte:
      return 1;
    default:
      PACELINE_CHECK(!"an element type that can be reduced");
      return 0;
  }
}

void reduce_into(void* data, const void* other, std::int64_t count, at::ScalarType type, ReduceOp op) {
  const auto reduce = [&]<typename T>(T) {
    reduce_typed(static_cast<T*>(data), static_cast<const T*>(other), count, op);
  };
  switch (type) {
    case at::ScalarType::Double:
      return reduce(double{});
    case at::ScalarType::Float:
      return reduce(float{});
    case at::ScalarType::Long:
      return reduce(std::int64_t{});
    case at::ScalarType::Int:
      return reduce(std::int32_t{});
    case at::ScalarType::Byte:
      return reduce(std::uint8_t{});
    default:
      PACELINE_CHECK(!"an element type that can be reduced");
  }
}

void all_reduce_doubling(const Collective& call, void* data, std::int64_t count, at::ScalarType type, ReduceOp op) {
  const int n = call.size();
  const int powers = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  const std::size_t bytes = count * reducible_bytes(type);
  if (call.rank >= powers) {
    const auto result = [&] {
      start_send(call, data, bytes, call.rank - powers)->wait();
      return start_receive(call, data, bytes, call.rank - powers);
    }();
    result->wait();
    return;
  }
  const auto other = std::make_unique_for_overwrite<std::byte[]>(bytes);
  const bool has_extra = call.rank + powers < n;
  if (has_extra) {
    start_receive(call, other.get(), bytes, call.rank + powers)->wait();
    reduce_into(data, other.get(), count, type, op);
  }
  for (int bit = 1; bit < powers; bit *= 2) {
    const int partner = call.rank ^ bit;
    const auto received = start_receive(call, other.get(), bytes, partner);
    const auto sent = start_send(call, data, bytes, partner);
    received->wait();
    sent->wait();
    reduce_into(data, other.get(), count, type, op);
  }
  if (has_extra) start_send(call, data, bytes, call.rank + powers)->wait();
}

void all_reduce_ring(const Collective& call, void* data, std::int64_t count, at::ScalarType type, ReduceOp op) {
  const int n = call.size();
  if (n == 1) return;
  ring_reduce(call, data, count, type, op);
  std::vector<std::size_t> parts;
  for (int p = 0; p < n; ++p) {
    const Range range = part_of(count, n, p);
    parts.push_back((range.end - range.begin) * reducible_bytes(type));
  }
  all_gather_ring(call, data, parts);
}

void all_reduce_by_size(const Collective& call, void* data, std::int64_t count, at::ScalarType type, ReduceOp op) {
  if (count * reducible_bytes(type) < ring_from_bytes) {
    all_reduce_doubling(call, data, count, type, op);
  } else {
    all_reduce_ring(call, data, count, type, op);
  }
}

void reduce_scatter_ring(const Collective& call, void* data, std::int64_t part, at::ScalarType type, ReduceOp op) {
  if (call.size() > 1) ring_reduce(call, data, part * call.size(), type, op);
}

void all_gather_ring(const Collective& call, void* data, const std::vector<std::size_t>& part_bytes) {
  const int n = call.size();
  PACELINE_CHECK(static_cast<int>(part_bytes.size()) == n);
  if (n == 1) return;
  const int next = (call.rank + 1) % n;
  const int previous = (call.rank + n - 1) % n;
  std::vector<std::size_t> offsets(n + 1, 0);
  for (int p = 0; p < n; ++p) offsets[p + 1] = offsets[p] + part_bytes[p];
  const auto pieces_of = [&](int part, const auto& visit) {
    for (std::size_t begin = offsets[part]; begin < offsets[part + 1]; begin += ring_piece_bytes) {
      visit(at_offset(data, begin), std::min(ring_piece_bytes, offsets[part + 1] - begin));
    }
  };
  // In step s part rank - 1 - s arrives; each piece is handed on as soon as it is here.
  std::vector<std::unique_ptr<Work>> sends;
  std::vector<std::unique_ptr<Work>> receives;
  for (int step = 0; step < n - 1; ++step) {
    pieces_of((call.rank + n - 1 - step) % n, [&](std::byte* piece, std::size_t bytes) {
      receives.push_back(start_receive(call, piece, bytes, previous));
    });
  }
  const auto send_piece = [&](std::byte* piece, std::size_t bytes) {
    sends.push_back(start_send(call, piece, bytes, next));
  };
  pieces_of(call.rank, send_piece);
  std::size_t index = 0;
  for (int step = 0; step < n - 1; ++step) {
    pieces_of((call.rank + n - 1 - step) % n, [&](std::byte* piece, std::size_t bytes) {
      receives[index++]->wait();
      if (step + 1 < n - 1) send_piece(piece, bytes);
    });
  }
  for (auto& send : sends) send->wait();
}

void broadcast_tree(const Collective& call, void* data, std::size_t bytes, int root) {
  const int n = call.size();
  const int place = (call.rank + n - root) % n;
  const auto rank_of = [&](int other) { return (other + root) % n; };
  int bit = 1;
  while (bit < n && (place & bit) == 0) bit *= 2;
  if (place != 0) start_receive(call, data, bytes, rank_of(place - bit))->wait();
  std::vector<std::unique_ptr<Work>> sends;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (place + bit < n) sends.push_back(start_send(call, data, bytes, rank_of(place + bit)));
  }
  for (auto& send : sends) send->wait();
}

void barrier_dissemination(const Collective& call) {
  const int n = call.size();
  for (int distance = 1; distance < n; distance *= 2) {
    std::uint8_t here = 1;
    std::uint8_t there = 0;
    const auto received = start_receive(call, &there, 1, (call.rank + n - distance) % n);
    const auto sent = start_send(call, &here, 1, (call.rank + distance) % n);
    received->wait();
    sent->wait();
  }
}

}  // namespace paceline
