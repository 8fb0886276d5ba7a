#include "paceline/data/html_text.h"

#include <gtest/gtest.h>

#include <iterator>

#include "paceline/base/error.h"
#include "paceline/base/philox.h"
#include "paceline/data/utf8.h"

namespace paceline {
namespace {

TEST(HtmlText, BlocksEndLinesAndWhiteSpaceCollapses) {
  EXPECT_EQ(html_text("<title>no</title><body><h1>A \n  title</h1><p>One&nbsp;&amp; <b>two</b>,\n "
                      "three.</p>\n<p>Four<br>five &lt;x&gt; &#233;"),
            "A title\n\nOne & two, three.\n\nFour\nfive <x> \u00e9");
  EXPECT_EQ(html_text("<table><tr><td>a</td><td>b</td></tr><tr><th>c<td>d</table>end"), "a b\nc d\n\nend");
  EXPECT_EQ(html_text(""), "");
  EXPECT_EQ(html_text("plain"), "plain");
}

TEST(HtmlText, PreKeepsItsLines) {
  const std::string page =
      "<article><p>Use <code>pip install demo</code> to install the tool and then read the manual page.</p>"
      "<pre><code>def f(x):\n    if x:\n        return 1\n\n\tdone\n</code></pre><p>The second "
      "paragraph.</p></article>";
  EXPECT_EQ(html_text(page),
            "Use pip install demo to install the tool and then read the manual page.\n\n"
            "def f(x):\n    if x:\n        return 1\n\n\tdone\n\nThe second paragraph.");
  EXPECT_EQ(html_text("<p>a</p><pre>\n   indented\n  less</pre>"), "a\n\n   indented\n  less");
}

TEST(HtmlText, MenusAndScriptsGo) {
  EXPECT_EQ(
      html_text(
          "<head><style>p{}</style></head><body><header>top</header><nav>menu</nav><script>var x = '<p>';</script>"
          "<div class='x sphinxsidebar'>side</div><div role='navigation'>related</div><div id=footer>foot</div>"
          "<p>kept<a class=headerlink href=#k>\u00b6</a></p><div class='related-work'>kept too</div><footer>f</footer>"
          "<form><button>b</button></form><!-- comment --></body>"),
      "kept\n\nkept too");
}

TEST(HtmlText, OneMainElementIsThePage) {
  EXPECT_EQ(html_text("<body><div>around</div><main><p>inside</p></main></body>"), "inside");
  EXPECT_EQ(html_text("<body><div>around</div><div role=main>inside</div></body>"), "inside");
  EXPECT_EQ(html_text("<div role=main>one</div><div role=main>two</div>"), "one\ntwo");
}

TEST(HtmlText, NothingDoubledOrGlued) {
  EXPECT_EQ(
      html_text(
          "<main><section><p>First</p>This gets Squished<div><h4>There should be a space</h4><p>Another sentence</p>"
          "This also gets Squished</div><div><h4>Where is the space</h4><p>This sentence has to be long enough.</p>"
          "</div></section></main>"),
      "First\n\nThis gets Squished\n\nThere should be a space\n\nAnother sentence\n\nThis also gets Squished\n\n"
      "Where is the space\n\nThis sentence has to be long enough.");
  EXPECT_EQ(html_text("<main><p>Intro.</p><ul><li><span tabindex=0>You may see it.</span></li><li><span>You may "
                      "correct it.</span></li></ul></main>"),
            "Intro.\n\nYou may see it.\nYou may correct it.");
  EXPECT_NE(
      html_text(
          "<table><tr><td><a href='/'>Home</a></td><td><h1>Gears</h1><p>Mount a gear.<p>If the left knob turns at rate "
          "<i>r</i>, the middle gear turns at rate -3<i>r</i> and the right knob turns at rate 3<i>r</i>/2. This "
          "produces "
          "a line with slope 3/2.<p>Then go on.</td></tr></table>")
          .find("rate r, the middle gear turns at rate -3r and the right knob turns at rate 3r/2. This produces a line "
                "with slope 3/2."),
      std::string::npos);
}

TEST(HtmlText, DeepNestingIsRefusedAtOnce) {
  std::string deep;
  for (int i = 0; i < 300000; ++i) deep += "<div>";
  EXPECT_THROW(html_text(deep + "x"), Error);
  std::string flat;
  for (int i = 0; i < 5000; ++i) flat += "<p>x<br><li>y";
  EXPECT_EQ(html_text(flat).substr(0, 9), "x\n\ny\n\nx\n\n");  // closed by each other, not nested
}

// The parser opens formatting elements again in each block and compares each attribute with those before it.
TEST(HtmlText, PagesWhoseCostGrowsWithTheirSquareAreRefusedAtOnce) {
  std::string fonts = "<p>";
  for (int i = 0; i < 1500; ++i) fonts += "<font size=" + std::to_string(i) + ">";
  for (int i = 0; i < 100000; ++i) fonts += "<p>x";
  EXPECT_THROW(html_text(fonts), Error);
  std::string attributes = "<p a=\">\"";
  for (int i = 0; i < 100000; ++i) attributes += " a" + std::to_string(i);
  EXPECT_THROW(html_text(attributes + ">x"), Error);
  std::string open;
  for (int i = 0; i < 200000; ++i) open += "<p ";
  EXPECT_THROW(html_text(open), Error);

  std::string bold;
  for (int i = 0; i < 2000; ++i) bold += "<p><b>x</b> y";
  EXPECT_EQ(html_text(bold).substr(0, 10), "x y\n\nx y\n\n");
  std::string words;
  for (int i = 0; i < 5000; ++i) words += "word ";
  EXPECT_EQ(html_text("<p title=\"" + words + "\">x " + words + "</p>").substr(0, 6), "x word");
}

TEST(HtmlText, AnyBytesGiveText) {
  const std::string pieces[] = {"<", ">",   "</",   "div", "p",  "pre",      " class=", "\"", "'",
                                "&", "&#x", "<!--", "-->", "\n", "\xC3\xA9", "script",  "="};
  for (std::uint64_t page = 0; page < 200; ++page) {
    std::string html;
    const std::uint64_t key = stream_key(page, "html");
    for (std::uint64_t i = 0; i < 300; ++i) html += pieces[random_bits(key, i) % std::size(pieces)];
    std::size_t replaced = 0;
    const std::string text = html_text(html);
    EXPECT_EQ(repair_utf8(text, replaced), text);
    EXPECT_EQ(replaced, 0U);
  }
}

}  // namespace
}  // namespace paceline
