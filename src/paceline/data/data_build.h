#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "paceline/data/data_manifest.h"
#include "paceline/data/data_settings.h"

namespace paceline {

/// Called as a stage goes on, by one thread at a time: what is done of how much, in `unit` ("files", "documents").
using DataProgress =
    std::function<void(std::string_view stage, std::int64_t done, std::int64_t total, std::string_view unit)>;

struct DataBuildResult {
  DataManifest manifest;
  bool up_to_date = false;  ///< the folder was there already, built from the same settings and inputs
};

/// Builds a data folder: files -> text -> exact deduplication -> held-out split -> tokenizer -> shards. Writes
///   tokenizer.json, train.bin/.idx, held_out.bin/.idx, ledger.json (what became of each document), manifest.json
/// The bytes of all files but the manifest's producer depend on settings and inputs alone, not on the workers. A
/// document is held out by a random number that is a function of (seed, its content), and the tokenizer sees training
/// documents only. Each document is followed by the end-of-text token; "<|endoftext|>" inside a text stays text.
/// The folder appears complete or what stood there stays. All text is held in memory.
DataBuildResult build_data(const DataSettings& settings, const DataProducer& producer, const DataProgress& progress);

}  // namespace paceline
