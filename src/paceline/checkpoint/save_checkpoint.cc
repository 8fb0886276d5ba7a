#include "paceline/base/error.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/checkpoint.h"
#include "paceline/checkpoint/durable_file.h"
#include "paceline/checkpoint/tensor_storage.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace paceline {
namespace {

using nlohmann::json;

/// Shares this rank's outcome with all others; throws on every rank the first rank's error, if any failed.
std::vector<json> agree(const SaveRequest& request, const std::string& error, json report) {
  const std::string text =
      json{{"error", error}, {"report", std::move(report)}}.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::vector<std::string> texts = request.collectives.all_gather_text(text);
  PACELINE_CHECK(texts.size() == static_cast<std::size_t>(request.layout.world_size()));
  std::vector<json> reports;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    json outcome = json::parse(texts[rank]);
    const std::string failed = outcome["error"];
    if (!failed.empty()) fail("checkpoint of step {} was not saved: rank {}: {}", request.step, rank, failed);
    reports.push_back(std::move(outcome["report"]));
  }
  return reports;
}

/// Runs one step of the save on this rank and then agrees with the others on how it went.
template <typename Step>
std::vector<json> together(const SaveRequest& request, Step step) {
  std::string error;
  json report;
  try {
    report = step();
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  return agree(request, error, std::move(report));
}

/// Writes the blocks of one state that this rank owns; the report is what the manifest needs of them.
json write_state(const SaveRequest& request, const std::filesystem::path& folder, const std::string& state,
                 const std::vector<StoredParameter>& parameters) {
  const Coordinate coordinate = request.layout.coordinate(request.rank);
  const int model_coordinate = coordinate.pp * request.layout.tp + coordinate.tp;
  struct Owned {
    const Block* block;
    at::Tensor values;
    SavedBlock saved;
    ElementType type;
  };
  std::vector<Owned> owned;
  for (const StoredParameter& stored : parameters) {
    const auto found = stored.states.find(state);
    if (found == stored.states.end()) continue;
    PACELINE_CHECK(found->second.sizes() == at::IntArrayRef(stored.parameter->shape));
    for (const Block& block : stored.parameter->blocks) {
      if (!owns_block(block, model_coordinate)) continue;
      owned.push_back(
          {&block, found->second, {.begin = block.begin, .extent = block.extent}, element_type_of(found->second)});
    }
  }
  if (owned.empty()) return nullptr;

  const std::filesystem::path path = folder / fmt::format("{}_rank_{:05}.safetensors", state, request.rank);
  at::Tensor current;
  std::vector<SafetensorsEntry> entries;
  for (const Owned& part : owned) {
    entries.push_back({.name = saved_block_key(state, part.block->tensor, part.saved),
                       .type = part.type,
                       .shape = part.block->extent,
                       .content = [&part, &current, &state] {
                         current = gather(*part.block, contiguous_values(part.values));
                         const std::int64_t bad =
                             first_non_finite(part.type, current.const_data_ptr(), current.numel());
                         if (bad >= 0) {
                           fail("{} of tensor '{}' are not finite (element {} of block {})", state, part.block->tensor,
                                bad, saved_block_key(state, part.block->tensor, part.saved));
                         }
                         return tensor_bytes(current);
                       }});
  }
  const WrittenSafetensors written =
      write_safetensors(path, {{"run_id", request.run_id}, {"step", std::to_string(request.step)}}, entries);
  json blocks = json::array();
  for (const Owned& part : owned) {
    const std::string key = saved_block_key(state, part.block->tensor, part.saved);
    blocks.push_back({{"tensor", part.block->tensor},
                      {"shape", part.block->global_shape},
                      {"dtype", element_type_name(part.type)},
                      {"begin", part.block->begin},
                      {"extent", part.block->extent},
                      {"checksum", written.tensor_checksums.at(key)}});
  }
  return {{"state", state},
          {"file", path.filename().string()},
          {"bytes", written.bytes},
          {"checksum", written.checksum},
          {"blocks", std::move(blocks)}};
}

json write_states(const SaveRequest& request, const std::filesystem::path& folder,
                  const std::vector<StoredParameter>& parameters) {
  json report = json::array();
  if (request.layout.coordinate(request.rank).dp != 0) return report;
  std::map<std::string, bool> states;
  for (const StoredParameter& stored : parameters) {
    PACELINE_CHECK(stored.states.contains("weights"));
    for (const auto& [state, values] : stored.states) states[state] = true;
  }
  for (const auto& [state, present] : states) {
    json written = write_state(request, folder, state, parameters);
    if (!written.is_null()) report.push_back(std::move(written));
  }
  return report;
}

Manifest make_manifest(const SaveRequest& request, const std::filesystem::path& folder,
                       const std::vector<json>& reports) {
  Manifest manifest{.program_version = request.program_version,
                    .run_id = request.run_id,
                    .step = request.step,
                    .model = request.model,
                    .layout = request.layout,
                    .training_state = request.training_state};
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    for (const json& file : reports[rank]) {
      const std::string name = file["file"];
      std::error_code error;
      const std::uintmax_t bytes = std::filesystem::file_size(folder / name, error);
      if (error || bytes != file["bytes"].get<std::uintmax_t>()) {
        fail("rank {}'s file {} is not whole where rank 0 looks: the run's folder must be one that all ranks share",
             rank, (folder / name).string());
      }
      manifest.files.push_back({.name = name, .bytes = bytes, .checksum = file["checksum"].get<std::uint64_t>()});
      for (const json& block : file["blocks"]) {
        SavedTensor& tensor = manifest.tensors[block["tensor"].get<std::string>()];
        tensor.shape = block["shape"].get<Shape>();
        SavedState& state = tensor.states[file["state"].get<std::string>()];
        PACELINE_CHECK(parse_element_type(block["dtype"].get<std::string>(), state.type));
        state.blocks.push_back({.file = name,
                                .begin = block["begin"].get<Shape>(),
                                .extent = block["extent"].get<Shape>(),
                                .checksum = block["checksum"].get<std::uint64_t>()});
      }
    }
  }
  check_tiling(manifest, folder.string());
  return manifest;
}

/// Puts the finished folder in its place; a checkpoint of the same step that is there is exchanged in one step and then
/// removed.
void move_into_place(const std::filesystem::path& unfinished, const std::filesystem::path& folder) {
  if (std::rename(unfinished.c_str(), folder.c_str()) == 0) return;
  const bool occupied = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR;
  if (!occupied ||
      syscall(SYS_renameat2, AT_FDCWD, unfinished.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    fail("cannot rename {} to {}: {}", unfinished.string(), folder.string(), std::strerror(errno));
  }
  std::filesystem::remove_all(unfinished);
}

void prune(const SaveRequest& request) {
  if (request.keep_last < 1) return;
  const auto complete = complete_checkpoints(request.run_folder);
  std::vector<std::filesystem::path> older;
  for (const auto& [step, folder] : complete) {
    if (step < request.step) older.push_back(folder);
  }
  const std::size_t kept = static_cast<std::size_t>(request.keep_last) - 1;
  for (std::size_t i = 0; i + kept < older.size(); ++i) {
    // Renamed first: a removal that is interrupted leaves no half of a checkpoint behind under its name.
    const std::filesystem::path removed = older[i].string() + ".tmp-removed";
    std::filesystem::rename(older[i], removed);
    std::filesystem::remove_all(removed);
  }
}

}  // namespace

SaveCollectives single_rank_collectives() {
  return {.all_gather_text = [](const std::string& text) { return std::vector<std::string>{text}; }, .barrier = [] {}};
}

std::filesystem::path save_checkpoint(const SaveRequest& request, const std::vector<StoredParameter>& parameters) {
  const std::filesystem::path parent = checkpoints_folder(request.run_folder);
  const std::filesystem::path folder = parent / checkpoint_name(request.step);
  const std::filesystem::path unfinished = folder.string() + ".tmp-" + request.run_id;
  const bool first = request.rank == 0;
  try {
    together(request, [&]() -> json {
      if (!first) return nullptr;
      std::filesystem::remove_all(unfinished);
      std::filesystem::create_directories(unfinished);
      return nullptr;
    });
    const std::vector<json> reports = together(request, [&] { return write_states(request, unfinished, parameters); });
    request.collectives.barrier();
    together(request, [&]() -> json {
      if (!first) return nullptr;
      write_durably(unfinished / manifest_file_name, manifest_text(make_manifest(request, unfinished, reports)));
      move_into_place(unfinished, folder);
      sync_folder(parent);
      write_durably(parent / "latest", checkpoint_name(request.step) + "\n");
      prune(request);
      return nullptr;
    });
  } catch (...) {
    if (first) {
      std::error_code ignored;
      std::filesystem::remove_all(unfinished, ignored);
    }
    throw;
  }
  return folder;
}

}  // namespace paceline
