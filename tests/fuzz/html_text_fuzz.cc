#include "fuzz_target.h"

#include "paceline/data/html_text.h"
#include "paceline/data/utf8.h"

namespace paceline {

void parse_foreign_bytes(std::string_view bytes) {
  std::size_t replaced = 0;
  const std::string text = html_text(repair_utf8(std::string(bytes), replaced));
  std::size_t broken = 0;
  repair_utf8(text, broken);
  require(broken == 0, "the text is not UTF-8");
}

std::vector<std::string> seeds() {
  const auto repeated = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  std::string formatting;
  for (int i = 0; i < 1900; ++i) formatting += "<font size=" + std::to_string(i) + ">";
  std::string attributes = "<p";
  for (int i = 0; i < 150'000; ++i) attributes += " a" + std::to_string(i);
  return {
      "<!doctype html><title>t</title><nav>menu</nav><main><h1>a</h1><p>b&nbsp;c<pre> d\n e</pre></main>",
      "<table><tr><td>a<td>b<p>c</table><ul><li>d<li>e</ul><svg><title>f</title></svg><template><p>g</template>",
      "<b><p>a</b>b<i><table><b>c</table><select><option>d</select><frameset>",
      repeated("<div>", 200'000),
      repeated("<b><div>", 100'000),
      repeated("<table><tr><td>", 70'000),
      repeated("<p><b>", 100'000),
      repeated("<a href=x>", 100'000),
      "<p>" + formatting + repeated("<p>x", 300'000),
      attributes + ">",
      "<li>" + formatting + repeated("<li>x", 200'000),
      repeated("</p>", 250'000),
      repeated("&", 1'000'000),
      repeated("<", 1'000'000),
      repeated("<!--", 250'000),
      "<p " + repeated("a=b ", 2'000) + ">",
      "<p " + repeated(" a", 200'000) + ">",
      repeated("<svg><math>", 100'000),
      repeated("<option>", 100'000),
      repeated("<li>", 100'000),
      repeated("<dd><address>", 100'000),
  };
}

}  // namespace paceline
