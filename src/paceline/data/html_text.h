#pragma once

#include <string>
#include <string_view>

namespace paceline {

/// The main text of an HTML page, as UTF-8 text with one empty line between paragraphs.
///
/// Dropped are scripts, styles, forms, nav, header, footer and aside elements, elements whose ARIA role says
/// navigation, search, banner or contentinfo, and the menus that Sphinx, DocBook and AsciiDoc write. A page with one
/// `<main>` (or role="main") is that element only. Block elements end lines, `pre` keeps its lines and spaces,
/// other white space collapses to one space. A page whose elements are nested more than 2,000 deep, that leaves so
/// many formatting elements open that the parser would repeat them a million times, or that gives an element more than
/// 2,000 attributes is refused with an Error: no real page does, and the parser's time or memory would grow with the
/// square of the page.
///
/// @param html valid UTF-8
std::string html_text(std::string_view html);

}  // namespace paceline
