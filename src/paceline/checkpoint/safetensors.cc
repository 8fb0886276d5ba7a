#include "paceline/checkpoint/safetensors.h"

#include "paceline/base/error.h"
#include "paceline/base/printable.h"
#include "paceline/checkpoint/durable_file.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

namespace paceline {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and is mapped as it is");

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// The bytes that a tensor of this type and shape takes; false when that overflows or is no whole number of bytes.
bool tensor_bytes(ElementType type, const std::vector<std::int64_t>& shape, std::uint64_t& bytes) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements)) return false;
  }
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(element_bits(type)), &bits)) return false;
  if (bits % 8 != 0) return false;
  bytes = bits / 8;
  return true;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail("cannot read {}: {}", path.string(), std::strerror(errno));
  struct stat status{};
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (!regular || size < 8) {
    close(descriptor);
    if (!regular) fail("{} is not a regular file", path.string());
    fail("{} is not a safetensors file: {} bytes, too short for a header", path.string(), size);
  }
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  close(descriptor);
  if (address == MAP_FAILED) fail("cannot map {}: {}", path.string(), std::strerror(error));
  // Unmaps when the constructor throws: the destructor does not run then.
  const auto unmap = [size](void* mapped) { munmap(mapped, size); };
  std::unique_ptr<void, decltype(unmap)> guard(address, unmap);

  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, address, 8);
  constexpr std::uint64_t largest_header = 100'000'000;  // the reference's bound
  if (header_bytes > largest_header) {
    fail(
        "{}: the header says it is {} bytes long, more than the format's 100,000,000: not a safetensors file, or "
        "damaged",
        path.string(), header_bytes);
  }
  if (header_bytes > size - 8) {
    fail("{}: the header says it is {} bytes long, but only {} follow: truncated or damaged", path.string(),
         header_bytes, size - 8);
  }
  data_offset_ = 8 + header_bytes;
  header_ = parse_safetensors_header({static_cast<const char*>(address) + 8, header_bytes}, size - data_offset_, path);
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
  mapping_ = {static_cast<const std::byte*>(guard.release()), size};
}

SafetensorsFile::~SafetensorsFile() {
  if (!mapping_.empty()) munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, {})),
      data_offset_(other.data_offset_),
      header_(std::move(other.header_)),
      index_(std::move(other.index_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mapping_, other.mapping_);
  std::swap(data_offset_, other.data_offset_);
  std::swap(header_, other.header_);
  std::swap(index_, other.index_);
  return *this;
}

const SafetensorsTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsTensor& tensor) const {
  return mapping_.subspan(data_offset_ + tensor.begin, tensor.end - tensor.begin);
}

WrittenSafetensors write_safetensors(const std::filesystem::path& path, std::map<std::string, std::string> metadata,
                                     std::vector<SafetensorsEntry> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return element_bits(a.type) > element_bits(b.type);
  });
  metadata.emplace("format", "pt");
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  std::vector<std::uint64_t> sizes;
  for (const SafetensorsEntry& entry : entries) {
    std::uint64_t bytes = 0;
    PACELINE_CHECK(tensor_bytes(entry.type, entry.shape, bytes) && entry.name != "__metadata__");
    PACELINE_CHECK(!header.contains(entry.name));
    header[entry.name] = {
        {"dtype", element_type_name(entry.type)}, {"shape", entry.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
    sizes.push_back(bytes);
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');

  DurableFile file(path);
  WrittenSafetensors written;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  const auto put = [&](const void* data, std::size_t bytes) {
    file.write(data, bytes);
    XXH3_64bits_update(hash.get(), data, bytes);
    written.bytes += bytes;
  };
  const std::uint64_t header_bytes = text.size();
  put(&header_bytes, sizeof(header_bytes));
  put(text.data(), text.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::span<const std::byte> content = entries[i].content();
    PACELINE_CHECK(content.size() == sizes[i]);
    put(content.data(), content.size());
    written.tensor_checksums[entries[i].name] = XXH3_64bits(content.data(), content.size());
  }
  file.commit();
  written.checksum = XXH3_64bits_digest(hash.get());
  return written;
}

namespace {

/// Reads a header event by event, because a parsed document no longer shows a key that came twice.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::filesystem::path& path) : path_(path) {}

  SafetensorsHeader header;

  bool null() override {
    if (skipped() || (depth_ == 1 && key_ == "__metadata__")) return true;
    return unexpected("null");
  }
  bool boolean(bool) override { return skipped() || unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return skipped() || unexpected(fmt::format("the number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return skipped() || unexpected(fmt::format("the number {}", text));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (skipped()) return true;
    if (array_ == Array::offsets) return offsets_.push_back(value), true;
    if (array_ != Array::shape) return unexpected(fmt::format("the number {}", value));
    if (value > static_cast<std::uint64_t>(INT64_MAX)) {
      fail("{}: tensor '{}' has a dimension of {}: too large", path_.string(), printable(tensor_.name), value);
    }
    tensor_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& value) override {
    if (skipped()) return true;
    if (in_metadata_) return header.metadata[key_] = value, true;
    if (depth_ != 2 || field_ != "dtype") return unexpected(fmt::format("the string '{}'", printable(value)));
    if (!parse_element_type(value, tensor_.type)) {
      fail("{}: tensor '{}' has the unknown dtype '{}'", path_.string(), printable(tensor_.name), printable(value));
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (unknown_field_) return ++skip_depth_, true;
    if (depth_ == 2 || array_ != Array::none) return unexpected("an object");
    if (++depth_ == 1) return true;
    in_metadata_ = key_ == "__metadata__";
    tensor_ = {.name = key_};
    field_.clear();
    fields_.clear();
    offsets_.clear();
    return true;
  }
  bool end_object() override {
    if (unknown_field_) return leave_skipped();
    if (depth_ == 2 && !in_metadata_) finish_tensor();
    --depth_;
    in_metadata_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (unknown_field_) return ++skip_depth_, true;
    const bool expected =
        depth_ == 2 && !in_metadata_ && array_ == Array::none && (field_ == "shape" || field_ == "data_offsets");
    if (!expected) return unexpected("an array");
    array_ = field_ == "shape" ? Array::shape : Array::offsets;
    return true;
  }
  bool end_array() override {
    if (unknown_field_) return leave_skipped();
    array_ = Array::none;
    return true;
  }
  bool key(string_t& value) override {
    if (unknown_field_) return true;
    if (depth_ == 1) {
      if (!names_.insert(value).second) fail("{}: the header names '{}' twice", path_.string(), printable(value));
      key_ = value;
    } else if (in_metadata_) {
      if (header.metadata.contains(value)) fail("{}: the metadata names '{}' twice", path_.string(), printable(value));
      key_ = value;
    } else {
      if (!fields_.insert(value).second)
        fail("{}: tensor '{}' gives '{}' twice", path_.string(), printable(tensor_.name), printable(value));
      field_ = value;
      unknown_field_ = value != "dtype" && value != "shape" && value != "data_offsets";
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail("{}: the header is not valid JSON at its byte {}", path_.string(), position);
  }

 private:
  enum class Array { none, shape, offsets };

  /// Whether a plain value belongs to a field that the format does not know: the reference reads past those.
  bool skipped() {
    if (!unknown_field_) return false;
    unknown_field_ = skip_depth_ > 0;
    return true;
  }
  bool leave_skipped() {
    unknown_field_ = --skip_depth_ > 0;
    return true;
  }
  bool unexpected(const std::string& what) const {
    if (depth_ == 0) fail("{}: the header is {} instead of an object", path_.string(), what);
    if (in_metadata_) {
      fail("{}: the metadata '{}' is {}: only strings are allowed", path_.string(), printable(key_), what);
    }
    if (depth_ == 1 && key_ == "__metadata__") {
      fail("{}: the metadata is {} instead of an object of strings", path_.string(), what);
    }
    if (depth_ == 1) fail("{}: tensor '{}' is {} instead of an object", path_.string(), printable(key_), what);
    fail("{}: tensor '{}': {} where '{}' was expected", path_.string(), printable(tensor_.name), what,
         printable(field_));
  }
  void finish_tensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) fail("{}: tensor '{}' has no '{}'", path_.string(), printable(tensor_.name), field);
    }
    if (offsets_.size() != 2) {
      fail("{}: tensor '{}' has {} data offsets instead of 2", path_.string(), printable(tensor_.name),
           offsets_.size());
    }
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header.tensors.push_back(std::move(tensor_));
  }

  const std::filesystem::path& path_;
  int depth_ = 0;       ///< 0 outside, 1 among the names, 2 inside the metadata or a tensor
  int skip_depth_ = 0;  ///< open brackets inside an unknown field
  bool unknown_field_ = false;
  bool in_metadata_ = false;
  Array array_ = Array::none;
  std::string key_;
  std::string field_;
  SafetensorsTensor tensor_;
  std::vector<std::uint64_t> offsets_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const char> text, std::uint64_t data_bytes,
                                           const std::filesystem::path& path) {
  const std::string where = path.string();
  // The JSON library takes a NUL as the end of its input and skips a byte-order mark; the format knows neither.
  if (std::find(text.begin(), text.end(), '\0') != text.end()) fail("{}: the header holds a NUL byte", where);
  if (!text.empty() && text.front() == '\xEF') fail("{}: the header begins with a byte-order mark", where);
  HeaderReader reader(path);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  SafetensorsHeader header = std::move(reader.header);

  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t expected = 0;
  const std::string* before = nullptr;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.end < tensor.begin) {
      fail("{}: tensor '{}' ends at byte {} before it begins at {}", where, printable(tensor.name), tensor.end,
           tensor.begin);
    }
    if (tensor.begin < expected) {
      fail("{}: tensor '{}' begins at byte {}, inside tensor '{}' that ends at {}", where, printable(tensor.name),
           tensor.begin, printable(*before), expected);
    }
    if (tensor.begin > expected) {
      fail("{}: {} bytes before tensor '{}' belong to no tensor", where, tensor.begin - expected,
           printable(tensor.name));
    }
    std::uint64_t bytes = 0;
    if (!tensor_bytes(tensor.type, tensor.shape, bytes)) {
      fail("{}: tensor '{}' of dtype {} and shape {} has no size in whole bytes below 2^64", where,
           printable(tensor.name), element_type_name(tensor.type), shape_text(tensor.shape));
    }
    if (tensor.end - tensor.begin != bytes) {
      fail("{}: tensor '{}' of dtype {} and shape {} needs {} bytes, but its offsets span {}", where,
           printable(tensor.name), element_type_name(tensor.type), shape_text(tensor.shape), bytes,
           tensor.end - tensor.begin);
    }
    if (tensor.end > data_bytes) {
      fail("{}: tensor '{}' ends at byte {} of the data, but the file holds only {}: truncated or damaged", where,
           printable(tensor.name), tensor.end, data_bytes);
    }
    expected = tensor.end;
    before = &tensor.name;
  }
  if (expected != data_bytes) {
    fail("{}: {} bytes after the last tensor belong to none", where, data_bytes - expected);
  }
  return header;
}

}  // namespace paceline
