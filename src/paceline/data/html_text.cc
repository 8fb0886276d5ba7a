#include "paceline/data/html_text.h"

#include <gumbo.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "paceline/base/error.h"

namespace paceline {
namespace {

constexpr int deepest_nesting = 2000;
constexpr std::int64_t most_repeated_formatting = 1'000'000;  // about 500 MB
constexpr int most_attributes = 2'000;

constexpr std::array dropped_tags = {
    GUMBO_TAG_HEAD,     GUMBO_TAG_SCRIPT, GUMBO_TAG_STYLE,    GUMBO_TAG_NOSCRIPT, GUMBO_TAG_TEMPLATE, GUMBO_TAG_NAV,
    GUMBO_TAG_HEADER,   GUMBO_TAG_FOOTER, GUMBO_TAG_ASIDE,    GUMBO_TAG_FORM,     GUMBO_TAG_BUTTON,   GUMBO_TAG_SELECT,
    GUMBO_TAG_TEXTAREA, GUMBO_TAG_IFRAME, GUMBO_TAG_OBJECT,   GUMBO_TAG_SVG,      GUMBO_TAG_MATH,     GUMBO_TAG_CANVAS,
    GUMBO_TAG_AUDIO,    GUMBO_TAG_VIDEO,  GUMBO_TAG_DATALIST, GUMBO_TAG_MENU,
};
constexpr std::array paragraph_tags = {
    GUMBO_TAG_P,  GUMBO_TAG_PRE,   GUMBO_TAG_BLOCKQUOTE, GUMBO_TAG_UL,      GUMBO_TAG_OL,     GUMBO_TAG_DL,
    GUMBO_TAG_H1, GUMBO_TAG_H2,    GUMBO_TAG_H3,         GUMBO_TAG_H4,      GUMBO_TAG_H5,     GUMBO_TAG_H6,
    GUMBO_TAG_HR, GUMBO_TAG_TABLE, GUMBO_TAG_SECTION,    GUMBO_TAG_ARTICLE, GUMBO_TAG_FIGURE, GUMBO_TAG_MAIN,
};
constexpr std::array line_tags = {
    GUMBO_TAG_DIV,     GUMBO_TAG_LI,      GUMBO_TAG_DT,       GUMBO_TAG_DD,      GUMBO_TAG_TR,
    GUMBO_TAG_BR,      GUMBO_TAG_BODY,    GUMBO_TAG_ADDRESS,  GUMBO_TAG_CAPTION, GUMBO_TAG_FIGCAPTION,
    GUMBO_TAG_DETAILS, GUMBO_TAG_SUMMARY, GUMBO_TAG_FIELDSET, GUMBO_TAG_HGROUP,  GUMBO_TAG_CENTER,
};
constexpr std::array<std::string_view, 4> dropped_roles = {"navigation", "search", "banner", "contentinfo"};
/// Menus and permanent links of Sphinx (related, sphinxsidebar, headerlink), DocBook (navheader, navfooter, toc) and
/// AsciiDoc (the ids).
constexpr std::array<std::string_view, 9> dropped_classes = {
    "headerlink", "related", "sphinxsidebar", "navheader", "navfooter", "toc", "mobile-nav", "footer", "noprint"};
constexpr std::array<std::string_view, 3> dropped_ids = {"header", "footer", "toc"};

template <typename Range, typename Value>
bool contains(const Range& range, const Value& value) {
  return std::find(range.begin(), range.end(), value) != range.end();
}

std::string_view attribute(const GumboNode* node, const char* name) {
  const GumboAttribute* found = gumbo_get_attribute(&node->v.element.attributes, name);
  return found == nullptr ? std::string_view{} : std::string_view{found->value};
}

bool has_dropped_class(std::string_view classes) {
  while (!classes.empty()) {
    const std::size_t end = std::min(classes.find(' '), classes.size());
    if (contains(dropped_classes, classes.substr(0, end))) return true;
    classes.remove_prefix(std::min(end + 1, classes.size()));
  }
  return false;
}

bool is_dropped(const GumboNode* node) {
  const GumboElement& element = node->v.element;
  if (contains(dropped_tags, element.tag)) return true;
  if (element.attributes.length == 0) return false;
  return contains(dropped_roles, attribute(node, "role")) || contains(dropped_ids, attribute(node, "id")) ||
         has_dropped_class(attribute(node, "class"));
}

bool is_main(const GumboNode* node) {
  return node->v.element.tag == GUMBO_TAG_MAIN || attribute(node, "role") == "main";
}

bool is_element(const GumboNode* node) { return node->type == GUMBO_NODE_ELEMENT || node->type == GUMBO_NODE_TEMPLATE; }

/// Joins pieces of text: collapses white space (the no-break space too) outside `pre`, and turns block borders into
/// line ends.
class TextWriter {
 public:
  void end_line() { block_line_ends_ = std::max(block_line_ends_, 1); }
  void end_paragraph() { block_line_ends_ = 2; }
  void space() { pending_space_ = true; }

  void write(std::string_view piece, bool preformatted) {
    for (std::size_t i = 0; i < piece.size(); ++i) {
      char c = piece[i];
      if (piece.substr(i, 2) == "\xC2\xA0") {
        c = ' ';
        ++i;
      }
      const bool white = c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f';
      if (white && !preformatted) {
        pending_space_ = true;
      } else if (c == '\n') {
        ++preformatted_line_ends_;
      } else if (c != '\r' && c != '\f') {
        flush();
        text_ += c;
      }
    }
  }

  std::string finish() && {
    strip_line_end();
    return std::move(text_);
  }

 private:
  void strip_line_end() {
    while (!text_.empty() && (text_.back() == ' ' || text_.back() == '\t')) text_.pop_back();
  }

  void flush() {
    const int line_ends = text_.empty() ? 0 : std::max(block_line_ends_, preformatted_line_ends_);
    if (line_ends > 0) {
      strip_line_end();
      text_.append(static_cast<std::size_t>(line_ends), '\n');
    } else if (pending_space_ && !text_.empty() && text_.back() != ' ') {
      text_ += ' ';
    }
    block_line_ends_ = preformatted_line_ends_ = 0;
    pending_space_ = false;
  }

  std::string text_;
  int block_line_ends_ = 0;
  int preformatted_line_ends_ = 0;
  bool pending_space_ = false;
};

const GumboNode* only_main(const GumboNode* root) {
  const GumboNode* main = nullptr;
  std::vector<const GumboNode*> open = {root};
  while (!open.empty()) {
    const GumboNode* node = open.back();
    open.pop_back();
    if (!is_element(node)) continue;
    if (is_main(node)) {
      if (main != nullptr) return nullptr;
      main = node;
    }
    const GumboVector& children = node->v.element.children;
    for (unsigned i = 0; i < children.length; ++i) open.push_back(static_cast<const GumboNode*>(children.data[i]));
  }
  return main;
}

void write_text(const GumboNode* node, bool preformatted, TextWriter& writer) {
  switch (node->type) {
    case GUMBO_NODE_TEXT:
    case GUMBO_NODE_WHITESPACE:
    case GUMBO_NODE_CDATA: writer.write(node->v.text.text, preformatted); return;
    case GUMBO_NODE_ELEMENT: break;
    default: return;
  }
  if (is_dropped(node)) return;
  const GumboTag tag = node->v.element.tag;
  const bool paragraph = contains(paragraph_tags, tag);
  const bool line = contains(line_tags, tag);
  const auto border = [&] { paragraph ? writer.end_paragraph() : line ? writer.end_line() : void(); };
  border();
  if (tag == GUMBO_TAG_TD || tag == GUMBO_TAG_TH) writer.space();
  const GumboVector& children = node->v.element.children;
  for (unsigned i = 0; i < children.length; ++i) {
    write_text(static_cast<const GumboNode*>(children.data[i]), preformatted || tag == GUMBO_TAG_PRE, writer);
  }
  border();
}

/// What makes the parser slow or large, estimated from above and from the tags alone.
struct PageCost {
  int depth = 0;
  std::int64_t repeated_formatting = 0;  ///< elements that the parser opens again: "<p><b>x<p>y" holds b twice
  int attributes = 0;                    ///< of one element; the parser compares each with those before
  std::size_t tag_bytes = 0;             ///< of all tags; more than the page's where tags begin inside tags
};

std::size_t most_tag_bytes(std::string_view html) { return 64 * html.size(); }

/// A tag's attributes, or a few more; at most one above the limit.
struct Attributes {
  int count = 0;
  std::size_t end = 0;  ///< where counting ended
};

Attributes count_attributes(std::string_view html, std::size_t position) {
  int count = 0;
  char quote = 0;
  std::size_t word_bytes = 0;
  bool equals = false;  ///< the word's first equals sign was its last character so far
  bool assigned = false;
  for (; position < html.size() && (quote != 0 || html[position] != '>') && count <= most_attributes; ++position) {
    const char c = html[position];
    if (quote != 0) {
      if (c == quote) quote = 0;
      continue;
    }
    if ((c == '"' || c == '\'') && equals) {
      quote = c;
    } else if (std::isspace(static_cast<unsigned char>(c)) == 0 && c != '/') {
      if (word_bytes++ == 0) ++count;
      equals = c == '=' && word_bytes > 1 && !assigned;
      assigned = assigned || equals;
      continue;
    }
    word_bytes = 0;
    equals = assigned = false;
  }
  return {count, position};
}

PageCost page_cost(std::string_view html) {
  constexpr std::array<std::string_view, 27> closed_by_others = {
      "p",     "li",     "dt",       "dd",    "tr",     "td",    "th",    "thead", "tbody",
      "tfoot", "option", "colgroup", "br",    "hr",     "img",   "input", "meta",  "link",
      "col",   "area",   "base",     "embed", "source", "track", "wbr",   "param", "body"};
  constexpr std::array<std::string_view, 14> formatting = {"a", "b",    "big",   "code",   "em",     "font", "i",
                                                           "nobr", "s", "small", "strike", "strong", "tt",   "u"};
  PageCost cost;
  int depth = 0;
  std::int64_t open_formatting = 0;
  std::string name;
  for (std::size_t i = html.find('<'); i != std::string_view::npos; i = html.find('<', i + 1)) {
    std::size_t begin = i + 1;
    const bool closing = begin < html.size() && html[begin] == '/';
    if (closing) ++begin;
    name.clear();
    while (begin < html.size() && std::isalnum(static_cast<unsigned char>(html[begin])) != 0 && name.size() < 16) {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(html[begin++])));
    }
    if (name.empty()) continue;
    if (!closing && cost.tag_bytes <= most_tag_bytes(html)) {
      const Attributes attributes = count_attributes(html, begin);
      cost.attributes = std::max(cost.attributes, attributes.count);
      cost.tag_bytes += attributes.end - begin;
    }
    if (contains(formatting, name)) {
      open_formatting = closing ? std::max<std::int64_t>(open_formatting - 1, 0) : open_formatting + 1;
    } else {
      cost.repeated_formatting += open_formatting;
    }
    if (contains(closed_by_others, name)) continue;
    depth = closing ? std::max(depth - 1, 0) : depth + 1;
    cost.depth = std::max(cost.depth, depth);
  }
  return cost;
}

}  // namespace

std::string html_text(std::string_view html) {
  const PageCost cost = page_cost(html);
  if (cost.depth > deepest_nesting) fail("elements are nested more than {} deep", deepest_nesting);
  if (cost.repeated_formatting > most_repeated_formatting) fail("too many formatting elements are left open");
  if (cost.attributes > most_attributes) fail("an element has more than {} attributes", most_attributes);
  if (cost.tag_bytes > most_tag_bytes(html)) fail("tags are not closed");
  GumboOptions options = kGumboDefaultOptions;
  options.max_errors = 0;
  const auto destroy = [&options](GumboOutput* output) { gumbo_destroy_output(&options, output); };
  const std::unique_ptr<GumboOutput, decltype(destroy)> output(
      gumbo_parse_with_options(&options, html.data(), html.size()), destroy);
  const GumboNode* main = only_main(output->root);
  TextWriter writer;
  write_text(main != nullptr ? main : output->root, false, writer);
  return std::move(writer).finish();
}

}  // namespace paceline
