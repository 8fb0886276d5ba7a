#include "fuzz_target.h"

#include "paceline/data/data_settings.h"

namespace paceline {

void parse_foreign_bytes(std::string_view bytes) { read_data_settings(input_file("data.toml", bytes)); }

std::vector<std::string> seeds() {
  std::string dotted = "input";
  for (int i = 0; i < 100'000; ++i) dotted += ".a";
  return {"[input]\npaths = ['a']\nextensions = ['.txt']\n[output]\nfolder = 'o'\n[tokenizer]\nvocabulary_size = 300\n"
          "[split]\nheld_out_fraction = 0.1\nseed = 3\n[run]\nworkers = 2\n",
          dotted + " = 1", "[" + dotted + "]\n", "a = " + std::string(200'000, '[')};
}

}  // namespace paceline
