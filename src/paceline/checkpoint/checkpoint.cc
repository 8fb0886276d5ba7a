#include "paceline/checkpoint/checkpoint.h"

#include "paceline/arch/huggingface_config.h"
#include "paceline/base/error.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/durable_file.h"
#include "paceline/checkpoint/run_folder.h"
#include "paceline/checkpoint/tensor_storage.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace paceline {

/// Files that were opened and verified, by name.
struct Checkpoint::Files {
  std::map<std::string, SafetensorsFile> verified;
};

namespace {

/// Says which tensors of a file no longer match the manifest; the file as a whole does not.
std::string describe_damage(const Manifest& manifest, const std::filesystem::path& path, const std::string& name) {
  const SafetensorsFile file(path);
  for (const auto& [tensor_name, tensor] : manifest.tensors) {
    for (const auto& [state_name, state] : tensor.states) {
      for (const SavedBlock& block : state.blocks) {
        if (block.file != name) continue;
        const SafetensorsTensor* found = file.find(saved_block_key(state_name, tensor_name, block));
        if (found == nullptr) return fmt::format("it has lost {} of tensor '{}'", state_name, tensor_name);
        const auto bytes = file.bytes(*found);
        if (XXH3_64bits(bytes.data(), bytes.size()) != block.checksum) {
          return fmt::format("{} of tensor '{}' are damaged", state_name, tensor_name);
        }
      }
    }
  }
  return "its header is damaged";
}

/// The part that two regions of a global tensor share; false when there is none.
bool intersect(const Shape& begin_a, const Shape& extent_a, const Shape& begin_b, const Shape& extent_b, Shape& begin,
               Shape& extent) {
  const std::size_t dimensions = begin_a.size();
  begin.resize(dimensions);
  extent.resize(dimensions);
  for (std::size_t d = 0; d < dimensions; ++d) {
    begin[d] = std::max(begin_a[d], begin_b[d]);
    extent[d] = std::min(begin_a[d] + extent_a[d], begin_b[d] + extent_b[d]) - begin[d];
    if (extent[d] <= 0) return false;
  }
  return true;
}

at::Tensor narrow_region(const at::Tensor& tensor, const Shape& tensor_begin, const Shape& begin, const Shape& extent) {
  at::Tensor part = tensor;
  for (std::size_t d = 0; d < begin.size(); ++d) {
    part = part.narrow(static_cast<std::int64_t>(d), begin[d] - tensor_begin[d], extent[d]);
  }
  return part;
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder) : folder_(folder), files_(std::make_unique<Files>()) {
  const std::filesystem::path manifest_path = folder / manifest_file_name;
  if (!std::filesystem::exists(manifest_path)) {
    fail("{} is no complete checkpoint: it has no {}", folder.string(), manifest_file_name);
  }
  manifest_ = parse_manifest(read_text(manifest_path), manifest_path);
  for (const SavedFile& file : manifest_.files) {
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(folder / file.name, error);
    if (error) fail("checkpoint {} lacks its file {}: {}", folder.string(), file.name, error.message());
    if (bytes != file.bytes) {
      fail("checkpoint file {} has {} bytes instead of {}: truncated or damaged", (folder / file.name).string(), bytes,
           file.bytes);
    }
  }
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;

void Checkpoint::require_model(const ModelConfig& model) const {
  if (const auto difference = first_difference(manifest_.model, model)) {
    fail("checkpoint {} is of another model: {} is {} there and {} in this run", folder_.string(), difference->key,
         difference->first, difference->second);
  }
}

const SafetensorsFile& Checkpoint::verified_file(const std::string& name) const {
  const auto known = files_->verified.find(name);
  if (known != files_->verified.end()) return known->second;
  const auto saved = std::find_if(manifest_.files.begin(), manifest_.files.end(),
                                  [&](const SavedFile& file) { return file.name == name; });
  PACELINE_CHECK(saved != manifest_.files.end());
  const std::filesystem::path path = folder_ / name;
  if (file_checksum(path) != saved->checksum) {
    fail("checkpoint file {} is damaged: {}", path.string(), describe_damage(manifest_, path, name));
  }
  return files_->verified.emplace(name, SafetensorsFile(path)).first->second;
}

void Checkpoint::load(const std::vector<StoredParameter>& parameters, LoadOptions options) const {
  // Everything is looked up and verified before the first value is written.
  for (const StoredParameter& stored : parameters) {
    for (const Block& block : stored.parameter->blocks) {
      const auto tensor = manifest_.tensors.find(block.tensor);
      if (tensor == manifest_.tensors.end()) fail("checkpoint {} has no tensor '{}'", folder_.string(), block.tensor);
      if (tensor->second.shape != block.global_shape) {
        fail("checkpoint {}: tensor '{}' has shape [{}], this model's has [{}]", folder_.string(), block.tensor,
             fmt::join(tensor->second.shape, ", "), fmt::join(block.global_shape, ", "));
      }
      for (const auto& [state_name, values] : stored.states) {
        PACELINE_CHECK(values.sizes() == at::IntArrayRef(stored.parameter->shape));
        const auto state = tensor->second.states.find(state_name);
        if (state == tensor->second.states.end()) {
          fail("checkpoint {} has no {} of tensor '{}'", folder_.string(), state_name, block.tensor);
        }
        if (state->second.type != element_type_of(values) && !options.convert_types) {
          fail(
              "checkpoint {}: {} of tensor '{}' are {}, this run keeps them as {}: set the precision that the "
              "checkpoint has",
              folder_.string(), state_name, block.tensor, element_type_name(state->second.type),
              element_type_name(element_type_of(values)));
        }
        Shape begin;
        Shape extent;
        for (const SavedBlock& saved : state->second.blocks) {
          if (!intersect(block.begin, block.extent, saved.begin, saved.extent, begin, extent)) continue;
          const std::string key = saved_block_key(state_name, block.tensor, saved);
          const SafetensorsFile& file = verified_file(saved.file);
          const SafetensorsTensor* found = file.find(key);
          if (found == nullptr || found->shape != saved.extent || found->type != state->second.type) {
            fail("{} does not hold '{}' as its manifest says", file.path().string(), key);
          }
        }
      }
    }
  }
  for (const StoredParameter& stored : parameters) {
    for (const auto& [state_name, values] : stored.states) {
      if (has_padding(*stored.parameter)) values.zero_();
      for (const Block& block : stored.parameter->blocks) {
        const at::Tensor target = block_view(block, values);
        Shape begin;
        Shape extent;
        for (const SavedBlock& saved : manifest_.tensors.at(block.tensor).states.at(state_name).blocks) {
          if (!intersect(block.begin, block.extent, saved.begin, saved.extent, begin, extent)) continue;
          const SafetensorsFile& file = verified_file(saved.file);
          const at::Tensor source = mapped_tensor(file, *file.find(saved_block_key(state_name, block.tensor, saved)));
          narrow_region(target, block.begin, begin, extent).copy_(narrow_region(source, saved.begin, begin, extent));
        }
      }
    }
  }
}

at::Tensor Checkpoint::read_tensor(const std::string& tensor, const std::string& state) const {
  const auto found = manifest_.tensors.find(tensor);
  if (found == manifest_.tensors.end()) fail("checkpoint {} has no tensor '{}'", folder_.string(), tensor);
  const auto saved_state = found->second.states.find(state);
  if (saved_state == found->second.states.end()) {
    fail("checkpoint {} has no {} of tensor '{}'", folder_.string(), state, tensor);
  }
  const at::ScalarType type = scalar_type_of(saved_state->second.type, tensor);
  const at::Tensor whole = at::empty(found->second.shape, at::TensorOptions(type));
  for (const SavedBlock& saved : saved_state->second.blocks) {
    const SafetensorsFile& file = verified_file(saved.file);
    const SafetensorsTensor* part = file.find(saved_block_key(state, tensor, saved));
    if (part == nullptr || part->shape != saved.extent || part->type != saved_state->second.type) {
      fail("{} does not hold '{}' as its manifest says", file.path().string(), saved_block_key(state, tensor, saved));
    }
    narrow_region(whole, Shape(found->second.shape.size(), 0), saved.begin, saved.extent)
        .copy_(mapped_tensor(file, *part));
  }
  return whole;
}

}  // namespace paceline
